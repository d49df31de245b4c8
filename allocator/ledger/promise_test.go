package ledger

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/annona-gateway/annona/allocator/ledger/factpb"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
)

// check asserts the yardstick (PROTOCOL.md): what the pool has, what the regions could spend and what is on its way to them
// is at most the capacity. Where the capacity fell below that, it may only fall from there. It also asserts that no
// region can spend more than its O, unless that was granted by a journal that is lost. (The limit itself is asserted at every
// spending.)
func (w *world) check() {
	p, known := w.ledger.Pool(w.now+w.clock, worldPolicy, limit.Key(worldKey))
	if !known {
		w.highest = worldBudgets[0].Capacity
		return
	}
	held := map[string]limit.Tokens{}
	for _, s := range w.stores {
		w.touch(s)
		held[s.region] += s.left
	}
	for _, h := range p.Holdings {
		if held[h.Region] > h.Outstanding && w.now >= w.lostUntil {
			w.t.Fatalf("region %s can spend %d at %s\n%s", h.Region, held[h.Region], span(w.now), w.ledger)
		}
		held[h.Region] = max(held[h.Region], h.Outstanding)
	}
	sum := max(p.Level, 0)
	for _, tokens := range held {
		sum += tokens
	}
	w.highest = max(p.Budget.Capacity, min(w.highest, sum))
	if w.now < w.lostUntil {
		w.highest = worldBudgets[0].Capacity // which the lost journal may have granted
	}
	if sum > w.highest {
		w.t.Fatalf("pool and leases add up to %d tokens at %s, above %d\n%s", sum, span(w.now), w.highest, w.ledger)
	}
}

// replayed returns what the journal's facts add up to.
func (w *world) replayed() *Ledger {
	twin := New()
	for _, data := range w.journal {
		fact := new(factpb.Fact)
		if err := proto.Unmarshal(data, fact); err != nil {
			w.t.Fatal(err)
		}
		twin.Apply(fact)
	}
	return twin
}

// replay asserts that the journal adds up to the very same ledger.
func (w *world) replay() {
	twin := w.replayed()
	if !reflect.DeepEqual(normal(twin), normal(w.ledger)) {
		w.t.Fatalf("the journal adds up to another ledger\n%s\nwant\n%s", twin, w.ledger)
	}
	w.ledger = twin
}

// normal forgets the difference between an empty list and none, which no rule knows either.
func normal(l *Ledger) *Ledger {
	if len(l.due) == 0 {
		l.due = nil
	}
	return l
}

// settleDown lets every lease lapse and every pool fill: whatever happened, in the end every region is served, nothing is stuck,
// and a full idle pool is forgotten.
func (w *world) settleDown() {
	if !w.fixed {
		w.terms.Pool = worldBudgets[0]
		w.oracle.rate = int64(w.terms.Pool.Rate)
	}
	w.terms.Weights = worldWeights[0]
	w.decided(w.item(w.stores[0], true)) // the writer hears of the numbers before time passes
	for _, s := range w.stores[:3] {
		w.now += 20_000 * limit.MicrosPerSecond // by which the clock has caught up
		w.serve(s)
	}
	w.filled(w.decided(w.item(w.stores[0], true)))
	w.now += 300 * limit.MicrosPerSecond
	for range 8 {
		w.apply(w.ledger.Sweep(w.now+w.clock, 10)...)
		w.now += 60 * limit.MicrosPerSecond
	}
	p, known := w.ledger.Pool(w.now+w.clock, worldPolicy, limit.Key(worldKey))
	id := poolID{policy: worldPolicy, key: limit.Key(worldKey)}
	if known && p.Budget == w.terms.Pool && w.ledger.pools[id].keep < w.now+w.clock-600*limit.MicrosPerSecond {
		w.t.Fatalf("an idle pool is not forgotten\n%s", w.ledger)
	}
}

// serve asserts that s gets a token within three requests, two minutes apart; one whose counters are refused begins a session, as
// agents do.
func (w *world) serve(s *store) {
	for range 3 {
		w.now += RefusedFor
		r := w.item(s, false)
		r.item.Want, r.item.Waiting, r.item.Cost = 1, 1, 1
		reply := w.decided(r)
		w.filled(reply)
		if reply.answer.GetGranted() > 0 {
			return
		}
		if reply.answer.GetRefusal() == leasepb.Refusal_REFUSAL_INVALID {
			s.begin()
		}
	}
	w.t.Fatalf("region %s is not served: %+v\n%s", s.region, s, w.ledger)
}

// TestPromise1_NoIntervalAdmitsMoreThanTheLimit plays random worlds. Whatever is lost, late, repeated, reordered, replaced or
// changed, cost admitted in any interval T is at most C + R·T, the books add up, and the journal adds up to them.
func TestPromise1_NoIntervalAdmitsMoreThanTheLimit(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		script := rapid.SliceOfN(rapid.Byte(), 400, 2000).Draw(rt, "script")
		newWorld(tb{t, rt}, script).run()
	})
}

// TestPromise1_LongRandomWorlds goes further than shrinkable scripts do. It also asserts that the worlds are alive: tokens are
// granted and spent, else a ledger that grants nothing would pass.
func TestPromise1_LongRandomWorlds(t *testing.T) {
	var spent limit.Tokens
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		script := make([]byte, 3000)
		for i := range script {
			script[i] = byte(random.Uint32())
		}
		w := newWorld(t, script)
		w.run()
		spent += w.spent
	}
	t.Logf("spent %d", spent)
	if spent < 200*50 {
		t.Errorf("only %d tokens were spent in 200 worlds: they prove nothing", spent)
	}
}

// FuzzLedger lets the fuzzer write the world's script.
func FuzzLedger(f *testing.F) {
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 2))
		script := make([]byte, 600)
		for i := range script {
			script[i] = byte(random.Uint32())
		}
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) { newWorld(t, script).run() })
}

// tb lends rapid's failure to the world, which wants a testing.TB.
type tb struct {
	testing.TB
	rt *rapid.T
}

func (t tb) Fatal(args ...any)                 { t.rt.Fatal(args...) }
func (t tb) Fatalf(format string, args ...any) { t.rt.Fatalf(format, args...) }

// FuzzDecide gives Decide items that no region would send. It must not panic, and books must add up.
func FuzzDecide(f *testing.F) {
	f.Add(uint64(1), uint64(2), uint64(1), int64(3), int64(0), int64(0), int64(10), int64(5), int64(1))
	f.Fuzz(func(t *testing.T, session, seq, applied uint64, spent, returned, lapsed, want, waiting, cost int64) {
		w := newWorld(t, nil)
		w.filled(w.decided(w.item(w.stores[1], false)))
		for i := range uint64(3) {
			r := w.item(w.stores[1], false)
			r.item.Session, r.item.Seq, r.item.Applied = session, seq+i, applied
			r.item.Spent, r.item.Returned, r.item.Lapsed = spent, returned, lapsed
			r.item.Want, r.item.Waiting, r.item.Cost = want, waiting, cost
			before := w.ledger.String()
			answer := w.decided(r).answer
			if after := w.ledger.String(); answer.GetRefusal() != 0 && before != after {
				t.Fatalf("a refused item changed the ledger\n%s\n%s", before, after)
			}
			if err := lease.CheckReply(replyOf(answer), envelopeOf(r)); err != nil {
				t.Fatalf("an answer that no region accepts: %v", err)
			}
		}
		w.replay()
	})
}
