package region_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/annona-gateway/annona/region"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/bus/bustest"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

const policyText = "schema: 1\npolicies: []\n"

// rig is an agent between a real redis-server and a real NATS server, with a writer that grants what is asked.
type rig struct {
	*testing.T
	redis  *buckettest.Server
	nats   *bustest.Server
	store  *bucket.Store // as a gateway has it
	writer *writer
	agent  *region.Agent
	end    context.CancelFunc
	ended  chan error
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, redis: buckettest.StartRedis(t), nats: bustest.Start(t, bustest.Options{})}
	var err error
	if r.store, err = bucket.Open(bucket.Config{Addrs: []string{r.redis.Addr}, Timeout: time.Second}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.store.Close() })
	r.register()
	r.writer = startWriter(t, r.nats.Connect(t))
	r.start()
	return r
}

// start runs the agent.
func (r *rig) start() {
	r.Helper()
	cfg := region.Defaults()
	cfg.Region, cfg.Admin = "eu", "127.0.0.1:0"
	cfg.Redis.Addrs, cfg.NATS.URLs = []string{r.redis.Addr}, []string{r.nats.URL()}
	agent, err := region.Open(r.Context(), cfg, telemetry.ForTest(io.Discard))
	if err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.Context())
	ended := make(chan error, 1)
	r.agent, r.end, r.ended = agent, cancel, ended
	go func() { ended <- agent.Run(ctx) }()
	r.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			r.Errorf("Run: %v", err)
		}
		ended <- nil
		_ = agent.Close()
	})
}

// drain ends the agent and waits for it.
func (r *rig) drain() time.Duration {
	r.Helper()
	begun := time.Now()
	r.end()
	err := <-r.ended
	r.ended <- err
	return time.Since(begun)
}

// publish puts the two documents into NATS, as an allocator does.
func (r *rig) publish() {
	r.Helper()
	documents, err := bus.OpenDocuments(r.Context(), r.nats.Connect(r.T), 1, true)
	if err != nil {
		r.Fatal(err)
	}
	regions, err := policy.EncodeRegions(&policy.Regions{
		Regions: []policy.Region{{Name: "eu", Weight: 1}}, Shards: policy.DefaultShards, Times: policy.DefaultTimes(),
	})
	if err != nil {
		r.Fatal(err)
	}
	for name, data := range map[string][]byte{bus.PolicyDocument: []byte(policyText), bus.RegionsDocument: regions} {
		if _, err := documents.Put(r.Context(), name, 0, data); err != nil {
			r.Fatal(err)
		}
	}
}

// register registers a gateway, as one does at its start and every 5 s.
func (r *rig) register() {
	r.Helper()
	if err := r.store.Register(r.Context(), bucket.Gateway{ID: "g1", Revision: 1, Fingerprint: "f1"}); err != nil {
		r.Fatal(err)
	}
}

// eventually fails the test if f goes on failing.
func (r *rig) eventually(most time.Duration, f func() error) {
	r.Helper()
	if err := buckettest.Poll(r.Context(), most, f); err != nil {
		r.Fatal(err)
	}
}

// charge is a token of user n's bucket, none of it the region's own.
func charge(n int) bucket.Charge {
	var key limit.Key
	key[7], key[15] = byte(n%policy.DefaultShards), byte(n)
	return bucket.Charge{
		Ref: bucket.Ref{Shard: key.Shard(policy.DefaultShards), Key: key}, Policy: "p", Revision: 1, Leased: true,
		Pool: limit.Budget{Capacity: 100, Rate: 100 * limit.MicroPerToken}, Cost: 1,
	}
}

// take asks for a token until it is there, as a gateway does.
func (r *rig) take(n int) {
	r.Helper()
	r.eventually(5*time.Second, func() error {
		verdict, err := r.store.Take(r.Context(), bucket.Request{
			Charges: []bucket.Charge{charge(n)}, MayWait: true, WaitFor: time.Second,
		})
		if err == nil && verdict.Outcome != bucket.Admitted {
			err = fmt.Errorf("outcome %d, want admitted", verdict.Outcome)
		}
		return err
	})
}

func (r *rig) view(n int) bucket.View {
	r.Helper()
	views, err := r.store.Views(r.Context(), []bucket.Ref{charge(n).Ref})
	if err != nil {
		r.Fatal(err)
	}
	return views[0]
}

// ready reads the agent's /readyz.
func (r *rig) ready() (body telemetry.Readiness, err error) {
	client := http.Client{Timeout: 5 * time.Second}
	request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://"+r.agent.AdminAddr().String()+"/readyz", nil)
	if err != nil {
		return body, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return body, err
	}
	defer func() { _ = answer.Body.Close() }()
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil {
		return body, err
	}
	if body.Ready != (answer.StatusCode == http.StatusOK) {
		return body, errors.New("the status contradicts the body")
	}
	if !body.Ready {
		return body, fmt.Errorf("not ready: %+v", body.Checks)
	}
	return body, nil
}

// writer answers every envelope: it grants what is wanted and keeps count of each key, in a session at a time.
type writer struct {
	mu       sync.Mutex
	items    map[limit.Key]*leasepb.Item // the newest by key
	granted  map[limit.Key]int64         // in its session
	answers  map[limit.Key]*leasepb.Answer
	sequence uint64
}

func startWriter(t *testing.T, conn *nats.Conn) *writer {
	t.Helper()
	w := &writer{items: map[limit.Key]*leasepb.Item{}, granted: map[limit.Key]int64{}, answers: map[limit.Key]*leasepb.Answer{}}
	_, err := conn.Subscribe("annona.lease.*.*", func(m *nats.Msg) {
		e, err := lease.DecodeEnvelope(m.Data, m.Subject)
		if err != nil {
			t.Errorf("envelope: %v", err)
			return
		}
		data, err := lease.EncodeReply(w.answer(e), e)
		if err != nil {
			t.Errorf("reply: %v", err)
			return
		}
		_ = m.Respond(data) // lost answers are asked for again
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *writer) answer(e *leasepb.Envelope) *leasepb.Reply {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sequence++
	reply := &leasepb.Reply{Proto: lease.Proto, Term: "t1", Sequence: w.sequence, Contact: w.sequence}
	for _, item := range e.GetItems() {
		key := lease.KeyOf(item)
		old := w.items[key]
		if old.GetSession() == item.GetSession() && old.GetSeq() == item.GetSeq() {
			reply.Answers = append(reply.Answers, w.answers[key])
			continue
		}
		if old.GetSession() != item.GetSession() {
			w.granted[key] = 0
		}
		w.items[key] = item
		w.granted[key] += item.GetWant()
		w.answers[key] = &leasepb.Answer{
			Key: item.GetKey(), Policy: item.GetPolicy(), Session: item.GetSession(), Seq: item.GetSeq(),
			Granted: item.GetWant(), TtlUs: (10 * time.Second).Microseconds(), PoolLevel: 50,
		}
		reply.Answers = append(reply.Answers, w.answers[key])
	}
	return reply
}

// settled is nil if nothing of user n's tokens is out: all are reported spent or returned.
func (w *writer) settled(n int, spent int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := charge(n).Key
	item := w.items[key]
	if item.GetSpent() != spent || item.GetSpent()+item.GetReturned() != w.granted[key] {
		return fmt.Errorf("granted %d, reported %d spent and %d returned; want %d spent and the rest returned",
			w.granted[key], item.GetSpent(), item.GetReturned(), spent)
	}
	return nil
}
