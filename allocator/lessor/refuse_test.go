package lessor_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/annona-gateway/annona/allocator/journal/journaltest"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/policy"
)

func TestWholeEnvelopesAreRefusedWithASentence(t *testing.T) {
	rows := map[string]struct {
		change func(*leasepb.Envelope)
		says   string
	}{
		"another secret":      {func(e *leasepb.Envelope) { e.Fingerprint = "ffee" }, "hash_secret_file"},
		"no secret":           {func(e *leasepb.Envelope) { e.Fingerprint = "" }, "hash_secret_file"},
		"an unknown region":   {func(e *leasepb.Envelope) { e.Region = "moon" }, "regions document"},
		"another shard's key": {func(e *leasepb.Envelope) { e.Items[0].Key[7]++ }, "key of shard 1"},
		"another protocol":    {func(e *leasepb.Envelope) { e.Proto = 2 }, "proto 2"},
		"a broken item":       {func(e *leasepb.Envelope) { e.Items[0].Want = -1 }, "want"},
	}
	for _, name := range sorted(rows) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, &journaltest.Memory{})
				before := len(r.memory.Records(0))
				env := envelope("eu", 0, want(keyOf(0, 1), 1, 10))
				rows[name].change(env)
				reply := r.ask(env)
				if reply == nil || !strings.Contains(reply.GetRefused(), rows[name].says) || len(reply.GetAnswers()) != 0 {
					t.Errorf("answer = %v, want a refusal that says %q", reply, rows[name].says)
				}
				if got := len(r.memory.Records(0)); got != before {
					t.Errorf("the refusal cost %d records, want none", got-before)
				}
			})
		})
	}
}

func TestWhatIsNoEnvelopeIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &journaltest.Memory{})
		well, err := proto.Marshal(envelope("eu", 0))
		if err != nil {
			t.Fatal(err)
		}
		for name, row := range map[string]struct {
			subject string
			data    []byte
		}{
			"garbage":                {lease.LeaseSubject("eu", 0), []byte("\xff\xff\xff")},
			"another region's":       {lease.LeaseSubject("us", 0), well},
			"another shard's":        {lease.LeaseSubject("eu", 1), well},
			"an endless description": {"annona.lease." + strings.Repeat("x", 2*lease.MaxReason) + ".0", well},
		} {
			var answered []byte
			r.wire.Deliver(0, row.subject, nil, row.data, func(data []byte) error {
				answered = data
				return nil
			})
			reply, err := lease.DecodeReply(answered, &leasepb.Envelope{})
			if err != nil || reply.GetRefused() == "" {
				t.Errorf("%s: answer %v, %v, want a refusal", name, reply, err)
			}
		}
	})
}

func TestAWrongSecretIsShoutedButNotForEveryEnvelope(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &journaltest.Memory{})
		env := envelope("eu", 0)
		env.Fingerprint = "ffee"
		for range 50 {
			r.ask(env)
		}
		if got := r.log.count("another secret"); got != 1 {
			t.Errorf("shouted %d times for 50 envelopes at once, want once", got)
		}
		if status := r.lessor.Regions()[1]; status.Name != "eu" || !status.StoreFingerprintMismatch || status.Heard >= 0 {
			t.Errorf("status = %+v, want eu with another secret and never heard", status)
		}
		pass(time.Minute + time.Second)
		r.ask(env)
		if got := r.log.count("another secret"); got != 2 {
			t.Errorf("shouted %d times after a minute, want twice", got)
		}
		pass(time.Minute + time.Second)
		r.ask(envelope("eu", 0))
		if status := r.lessor.Regions()[1]; status.StoreFingerprintMismatch || status.Heard < 0 {
			t.Errorf("status = %+v once the secret is right, want no mismatch", status)
		}
	})
}

func TestAnItemOfAnUnknownPolicyIsRefusedAloneAndTouchesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &journaltest.Memory{})
		unknown, tier, local, good := want(keyOf(0, 1), 1, 5), want(keyOf(0, 2), 1, 5), want(keyOf(0, 3), 1, 5), want(keyOf(0, 4), 1, 5)
		unknown.Policy, tier.Variant, local.Policy = "none", "tier:none", "local"
		reply := r.ask(envelope("eu", 0, unknown, tier, local, good))
		if reply == nil || len(reply.GetAnswers()) != 4 {
			t.Fatalf("answer = %v, want four items'", reply)
		}
		for i, answer := range reply.GetAnswers()[:3] {
			if answer.GetRefusal() != leasepb.Refusal_REFUSAL_UNKNOWN_POLICY || answer.GetGranted() != 0 {
				t.Errorf("item %d answered %v, want unknown policy", i, answer)
			}
		}
		if got := reply.GetAnswers()[3].GetGranted(); got != 5 {
			t.Errorf("the good item was granted %d, want 5", got)
		}
		if pools := r.books(0).Pools(0); len(pools) != 1 || pools[0].Key != keyOf(0, 4) {
			t.Errorf("pools = %v, want the good item's only", pools)
		}
	})
}

func TestTheNumbersAreThoseOfTheDocumentsInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, regions := documents()
		var policies atomic.Pointer[policy.Document]
		policies.Store(first)
		log, memory := &syncBuffer{}, &journaltest.Memory{}
		cfg := config(memory, log)
		cfg.Documents = func() (*policy.Document, *policy.Regions) { return policies.Load(), regions }
		r := startWith(t, memory, cfg, log)
		premium := want(keyOf(0, 1), 1, 500)
		premium.Variant = "tier:premium"
		if got := r.granted(envelope("eu", 0, premium)).GetGranted(); got != 500 {
			t.Errorf("premium was granted %d, want 500 of its larger pool", got)
		}
		reply := r.ask(envelope("us", 0))
		if got := reply.GetRegions(); got.GetTtlUs() != 10_000_000 || got.GetShards() != shards || len(got.GetRegions()) != 3 {
			t.Errorf("the answer carries %v, want the regions document", got)
		}
		later, _ := documents()
		later.Policies[0].Budget.Capacity = 10
		policies.Store(later)
		if got := r.granted(envelope("eu", 0, want(keyOf(0, 2), 1, 90))).GetGranted(); got > 10 {
			t.Errorf("granted %d after the limit was lowered to 10", got)
		}
	})
}

func TestWithoutARegionsDocumentNothingIsServedYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loaded atomic.Bool
		log, memory := &syncBuffer{}, &journaltest.Memory{}
		cfg := config(memory, log)
		policies, regions := documents()
		cfg.Documents = func() (*policy.Document, *policy.Regions) {
			if !loaded.Load() {
				return nil, nil
			}
			return policies, regions
		}
		r := startWith(t, memory, cfg, log)
		if r.lessor.Ready() == nil {
			t.Fatal("Ready = nil without a regions document")
		}
		if reply := r.ask(envelope("eu", 0)); reply != nil {
			t.Errorf("answered %v", reply)
		}
		loaded.Store(true)
		pass(5 * time.Second)
		synctest.Wait()
		if err := r.lessor.Ready(); err != nil {
			t.Errorf("Ready = %v once there is one", err)
		}
	})
}
