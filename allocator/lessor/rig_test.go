package lessor_test

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/annona-gateway/annona/allocator/journal"
	"github.com/annona-gateway/annona/allocator/journal/journaltest"
	"github.com/annona-gateway/annona/allocator/ledger"
	"github.com/annona-gateway/annona/allocator/ledger/factpb"
	"github.com/annona-gateway/annona/allocator/lessor"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

const (
	shards      = 4
	fingerprint = "00112233"
	// poolCapacity is what allotments of 3 leave of a burst of 100 over three regions.
	poolCapacity = 91
)

// documents are what tests run with.
func documents() (*policy.Document, *policy.Regions) {
	fast := limit.Budget{Capacity: 100, Rate: 50 * limit.MicroPerToken}
	base := policy.Policy{Algorithm: limit.TokenBucket, Scope: policy.Global, Budget: fast, AllotmentPPM: 100_000, Enforced: true}
	own, local := base, base
	own.Name, own.Tiers = "per-user", map[string]limit.Budget{"premium": {Capacity: 1000, Rate: 500 * limit.MicroPerToken}}
	local.Name, local.Scope = "local", policy.RegionOnly
	return &policy.Document{Revision: 1, Policies: []*policy.Policy{&own, &local}},
		&policy.Regions{
			Revision: 1,
			Regions:  []policy.Region{{Name: "ap", Weight: 1}, {Name: "eu", Weight: 1}, {Name: "us", Weight: 1}},
			Shards:   shards,
			Times:    policy.DefaultTimes(),
		}
}

// rig is a lessor over a journal in memory, in a bubble of time.
type rig struct {
	t      *testing.T
	memory *journaltest.Memory
	lessor *lessor.Lessor
	wire   *lessor.Wire
	log    *syncBuffer
	stop   func() error // ends Run and returns what it did
}

// config is a lessor's on j; its clock is the bubble's.
func config(j journal.Journal, log *syncBuffer) lessor.Config {
	return lessor.Config{
		Journal: j, Shards: shards, Fingerprint: fingerprint, Documents: documents,
		Now:       func() limit.Micros { return limit.Micros(time.Now().UnixMicro()) },
		Telemetry: telemetry.ForTest(log),
	}
}

// start runs a lessor and waits until it serves or tries again.
func start(t *testing.T, memory *journaltest.Memory) *rig {
	t.Helper()
	log := &syncBuffer{}
	return startWith(t, memory, config(memory, log), log)
}

func startWith(t *testing.T, memory *journaltest.Memory, cfg lessor.Config, log *syncBuffer) *rig {
	t.Helper()
	r := &rig{t: t, memory: memory, log: log}
	r.lessor, r.wire = lessor.NewOnWire(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.lessor.Run(ctx) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
	synctest.Wait()
	return r
}

// send delivers env and returns the channel on which its answer comes.
func (r *rig) send(env *leasepb.Envelope, header nats.Header) <-chan *leasepb.Reply {
	r.t.Helper()
	data, err := proto.Marshal(env)
	if err != nil {
		r.t.Fatal(err)
	}
	replies := make(chan *leasepb.Reply, 2)
	shard := int(env.GetShard())
	r.wire.Deliver(shard, lease.LeaseSubject(env.GetRegion(), shard), header, data, func(data []byte) error {
		reply, err := lease.DecodeReply(data, env)
		if err != nil {
			r.t.Errorf("answer to %v: %v", env, err)
			return nil
		}
		replies <- reply
		return nil
	})
	return replies
}

// ask delivers env and returns its answer, nil if there is none once nothing moves any more.
func (r *rig) ask(env *leasepb.Envelope) *leasepb.Reply {
	r.t.Helper()
	return answer(r.send(env, nil))
}

// answer returns the answer that has come by now, or nil.
func answer(replies <-chan *leasepb.Reply) *leasepb.Reply {
	synctest.Wait()
	select {
	case reply := <-replies:
		return reply
	default:
		return nil
	}
}

// granted asks and returns the only item's answer, which must have come.
func (r *rig) granted(env *leasepb.Envelope) *leasepb.Answer {
	r.t.Helper()
	reply := r.ask(env)
	if reply == nil || reply.GetRefused() != "" || len(reply.GetAnswers()) != 1 {
		r.t.Fatalf("answer to %v = %v, want one item's", env, reply)
	}
	return reply.GetAnswers()[0]
}

// books adds up a shard's journal anew, which checks every fact of it.
func (r *rig) books(shard int) *ledger.Ledger {
	books := ledger.New()
	for _, fact := range r.facts(shard) {
		books.Apply(fact)
	}
	return books
}

// facts are those in a shard's journal.
func (r *rig) facts(shard int) (facts []*factpb.Fact) {
	for _, record := range r.memory.Records(shard) {
		batch := &factpb.Batch{}
		if err := proto.Unmarshal(record, batch); err != nil {
			r.t.Fatal(err)
		}
		facts = append(facts, batch.GetFacts()...)
	}
	return facts
}

// epochs counts the journal epochs in a shard's journal.
func (r *rig) epochs(shard int) (n int) {
	for _, fact := range r.facts(shard) {
		if fact.GetBegun().GetEmpty() {
			n++
		}
	}
	return n
}

// outstanding is what a shard's journal says that region may still spend of a key.
func (r *rig) outstanding(region string, key limit.Key) limit.Tokens {
	pool, _ := r.books(key.Shard(shards)).Pool(limit.Micros(time.Now().UnixMicro()), "per-user", key)
	for _, h := range pool.Holdings {
		if h.Region == region {
			return h.Outstanding
		}
	}
	return 0
}

// keyOf returns the n-th key of a shard.
func keyOf(shard, n int) limit.Key {
	return limit.Key{7: byte(shard), 14: byte(n >> 8), 15: byte(n)}
}

// envelope is one of region about one shard.
func envelope(region string, shard int, items ...*leasepb.Item) *leasepb.Envelope {
	return &leasepb.Envelope{
		Proto: lease.Proto, Region: region, Epoch: "epoch-" + region, Agent: "agent-" + region,
		Shard: uint32(shard), Fingerprint: fingerprint, PatienceUs: 1_000_000, Items: items,
	}
}

// want is an item that asks for tokens that requests wait for.
func want(key limit.Key, seq uint64, tokens int64) *leasepb.Item {
	return &leasepb.Item{
		Policy: "per-user", Revision: 1, Key: key[:], Session: 1, Seq: seq, Applied: seq - 1, Want: tokens, Waiting: tokens, Cost: 1,
		Sealed: []byte("sealed"),
	}
}

// pass lets time go by in the bubble: every loop does what it does in that time, and nobody waits for it.
func pass(d time.Duration) { <-time.After(d) }

// syncBuffer is a log that may be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) count(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Count(b.b.Bytes(), []byte(text))
}

// sorted returns m's keys in order.
func sorted[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
