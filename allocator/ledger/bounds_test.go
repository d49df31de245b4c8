package ledger

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/annona-gateway/annona/allocator/ledger/factpb"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
)

// desk is a ledger with a clock, for tests that need many keys, regions or epochs.
type desk struct {
	*Ledger
	at    limit.Micros
	terms Terms
}

func newDesk() *desk {
	d := &desk{Ledger: New(), at: 1000 * limit.MicrosPerSecond, terms: Terms{
		Pool: limit.Budget{Capacity: 90, Rate: limit.MicroPerToken}, Weights: worldWeights[0],
		TTL: 10 * limit.MicrosPerSecond, Margin: 3_100_000, DriftPPM: 10_000,
	}}
	d.Apply(d.Begin(d.at, "t1", d.terms, false))
	return d
}

func keyOf(n int) []byte {
	key := make([]byte, limit.KeySize)
	binary.BigEndian.PutUint64(key, uint64(n))
	return key
}

// ask decides and applies one item that asks for want.
func (d *desk) ask(region, epoch string, key []byte, seq uint64, want int64) *leasepb.Answer {
	facts, answer := d.Decide(Command{At: d.at, Region: region, Epoch: epoch, Terms: d.terms, Item: &leasepb.Item{
		Policy: worldPolicy, Key: key, Session: 1, Seq: seq, Want: want, Waiting: want, Cost: 1,
	}})
	for _, fact := range facts {
		d.Apply(fact)
	}
	return answer
}

func TestBounds_RegionsPoolsAndTerms(t *testing.T) {
	d := newDesk()
	for i := range MaxRegions {
		if a := d.ask(fmt.Sprint("r", i), "e1", keyOf(1), 1, 0); a.GetRefusal() != 0 {
			t.Fatalf("region %d is refused: %v", i, a)
		}
	}
	if a := d.ask("one-more", "e1", keyOf(1), 1, 1); a.GetRefusal() != leasepb.Refusal_REFUSAL_BUSY {
		t.Errorf("a region beyond the bound is answered %v", a)
	}
	for i := range MaxPools {
		d.pools[poolID{policy: "filler", key: limit.Key(keyOf(i))}] = nil
	}
	if a := d.ask("r1", "e1", keyOf(2), 1, 1); a.GetRefusal() != leasepb.Refusal_REFUSAL_BUSY {
		t.Errorf("a key beyond the bound is answered %v", a)
	}
	if a := d.ask("r1", "e1", keyOf(1), 2, 0); a.GetRefusal() != 0 {
		t.Errorf("a known key is refused when there are many: %v", a)
	}
	d = newDesk()
	for i := range MaxTerms {
		d.Apply(d.Begin(d.at, fmt.Sprint("later", i), d.terms, false))
	}
	if d.HasTerm("t1") || !d.HasTerm("later0") || len(d.Ledger.terms) != MaxTerms {
		t.Errorf("of %d terms the first is known: %v", MaxTerms+1, d.HasTerm("t1"))
	}
}

// TestC2_ReplacedEpochsAreRefused, all of them that may still have a message on its way; a region that begins more than can
// be remembered is answered busy until the oldest is old enough.
func TestC2_ReplacedEpochsAreRefused(t *testing.T) {
	d := newDesk()
	for i := range MaxReplaced + 1 {
		if a := d.ask("eu", fmt.Sprint("e", i), keyOf(1), 1, 0); a.GetRefusal() != 0 {
			t.Fatalf("epoch %d: %v", i, a)
		}
	}
	for i := range MaxReplaced {
		if a := d.ask("eu", fmt.Sprint("e", i), keyOf(2), 9, 1); a.GetRefusal() != leasepb.Refusal_REFUSAL_OLD_SESSION {
			t.Fatalf("replaced epoch %d is answered %v", i, a)
		}
	}
	if a := d.ask("eu", "another", keyOf(1), 1, 1); a.GetRefusal() != leasepb.Refusal_REFUSAL_BUSY {
		t.Errorf("an epoch too many is answered %v", a)
	}
	d.Apply(d.Begin(7, "t2", d.terms, false)) // on another clock ages stay
	d.at = 7 + RefusedFor - 1
	if a := d.ask("eu", "another", keyOf(1), 1, 1); a.GetRefusal() != leasepb.Refusal_REFUSAL_BUSY {
		t.Errorf("a moment too early it is answered %v", a)
	}
	d.at++
	if a := d.ask("eu", "another", keyOf(1), 1, 1); a.GetRefusal() != 0 {
		t.Errorf("when the oldest is old it is answered %v", a)
	}
	if a := d.ask("eu", "e1", keyOf(1), 1, 1); a.GetRefusal() != leasepb.Refusal_REFUSAL_OLD_SESSION {
		t.Errorf("the second oldest is answered %v", a)
	}
}

// TestDecide_RefusesItemsWithoutSense: no region, no epoch, no item.
func TestDecide_RefusesItemsWithoutSense(t *testing.T) {
	d := newDesk()
	good := &leasepb.Item{Policy: worldPolicy, Key: keyOf(1), Session: 1, Seq: 1}
	for what, c := range map[string]Command{
		"no region": {Epoch: "e1", Item: good}, "no epoch": {Region: "eu", Item: good}, "no item": {Region: "eu", Epoch: "e1"},
	} {
		c.At, c.Terms = d.at, d.terms
		if facts, answer := d.Decide(c); len(facts) > 0 || answer.GetRefusal() != leasepb.Refusal_REFUSAL_INVALID {
			t.Errorf("%s: Decide = %v, %v", what, facts, answer)
		}
	}
}

// TestPools_AreSortedAndRefilled: what leaves the core has one order (H8), and shows levels of the instant asked about.
func TestPools_AreSortedAndRefilled(t *testing.T) {
	d := newDesk()
	for _, n := range []int{7, 3, 9, 1, 8} {
		d.ask("us", "e1", keyOf(n), 1, 10)
		d.ask("eu", "e1", keyOf(n), 1, 10)
	}
	facts, _ := d.Decide(Command{At: d.at, Region: "us", Epoch: "e1", Terms: d.terms, Item: &leasepb.Item{
		Policy: worldPolicy, Key: keyOf(9), Session: 1, Seq: 2, Applied: 1, Spent: 6, Left: 4,
	}})
	d.Apply(facts[0])
	pools := d.Pools(d.at + 2*limit.MicrosPerSecond)
	if len(pools) != 5 || !slices.IsSortedFunc(pools, func(a, b Pool) int { return bytes.Compare(a.Key[:], b.Key[:]) }) {
		t.Fatalf("Pools = %v", pools)
	}
	for _, p := range pools {
		// What is out counts against the capacity: only the pool to which spending was reported has room for what 2 s bring.
		level, out := limit.Tokens(70), limit.Tokens(10)
		if p.Key == limit.Key(keyOf(9)) {
			level, out = 72, 4
		}
		if p.Level != level || len(p.Holdings) != 2 || p.Holdings[0].Region != "eu" || p.Holdings[1].Outstanding != out {
			t.Errorf("a pool of 90 with 20 granted shows after 2 s at 1/s as %+v", p)
		}
		if one, known := d.Pool(d.at, p.Policy, p.Key); !known || one.Level != 70 {
			t.Errorf("Pool = %+v, %v", one, known)
		}
	}
	if _, known := d.Pool(d.at, worldPolicy, limit.Key(keyOf(2))); known {
		t.Error("a pool nobody asked about is known")
	}
}

// TestApply_PanicsOnBooksThatDoNotAddUp: a process that cannot count must not hand out tokens.
func TestApply_PanicsOnBooksThatDoNotAddUp(t *testing.T) {
	decided := func(change func(*factpb.Decided)) *factpb.Fact {
		f := &factpb.Decided{Policy: worldPolicy, Key: keyOf(1), Region: "eu", Session: 1, Seq: 2, MarkUs: 1}
		change(f)
		return &factpb.Fact{AtUs: 1, What: &factpb.Fact_Decided{Decided: f}}
	}
	for what, fact := range map[string]*factpb.Fact{
		"above the capacity":   decided(func(f *factpb.Decided) { f.Refilled = 100 }),
		"does not add up":      decided(func(f *factpb.Decided) { f.SettledSpent = 11 }),
		"no fact opened":       decided(func(f *factpb.Decided) { f.Key = keyOf(2) }),
		"pool that no fact":    {What: &factpb.Fact_Lapsed{Lapsed: &factpb.Lapsed{Policy: worldPolicy, Key: keyOf(2)}}},
		"of an unknown kind":   {},
		"region that no fact ": decided(func(f *factpb.Decided) { f.Region = "xx" }),
	} {
		t.Run(what, func(t *testing.T) {
			d := newDesk()
			d.ask("eu", "e1", keyOf(1), 1, 10)
			defer func() {
				if said := fmt.Sprint(recover()); !strings.Contains(said, strings.TrimSpace(what)) {
					t.Errorf("Apply says %s", said)
				}
			}()
			d.Apply(fact)
		})
	}
}

// TestSchedule_FindsWhatIsDue: the heap finds the same pools as a look at every one of them.
func TestSchedule_FindsWhatIsDue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDesk()
		for range rapid.IntRange(1, 60).Draw(t, "asks") {
			d.at += limit.Micros(rapid.Int64Range(0, 2*limit.MicrosPerSecond).Draw(t, "wait"))
			n := rapid.IntRange(0, 20).Draw(t, "key")
			seq := uint64(1)
			if p := d.pools[poolID{worldPolicy, limit.Key(keyOf(n))}]; p != nil {
				seq = p.holders[0].seq + 1
			}
			d.ask("eu", "e1", keyOf(n), seq, rapid.Int64Range(0, 5).Draw(t, "want"))
			for _, fact := range d.Sweep(d.at, rapid.IntRange(0, 3).Draw(t, "most")) {
				d.Apply(fact)
			}
		}
		at := d.at + limit.Micros(rapid.Int64Range(0, 100*limit.MicrosPerSecond).Draw(t, "at"))
		due := 0
		for _, p := range d.pools {
			if p.nextDue() != p.dueAt || d.due[p.due] != p {
				t.Fatalf("a pool is due at %d, scheduled for %d", p.nextDue(), p.dueAt)
			}
			if p.dueAt <= at {
				due++
			}
		}
		if facts := d.Sweep(at, 1000); len(facts) != due || len(d.due) != len(d.pools) {
			t.Fatalf("%d facts, %d pools are due of %d", len(facts), due, len(d.pools))
		}
		if most := rapid.IntRange(0, due).Draw(t, "bound"); len(d.Sweep(at, most)) != most {
			t.Fatalf("a sweep of at most %d found %d", most, len(d.Sweep(at, most)))
		}
	})
}

// TestSweep_EndsWithNothing: whatever is out lapses, whatever is full is forgotten, and then there is nothing left to sweep.
func TestSweep_EndsWithNothing(t *testing.T) {
	d := newDesk()
	for n := range 100 {
		d.ask("eu", "e1", keyOf(n), 1, int64(n%7))
	}
	d.at += 200 * limit.MicrosPerSecond
	for sweeps := 0; ; sweeps++ {
		facts := d.Sweep(d.at, 16)
		for _, fact := range facts {
			d.Apply(fact)
		}
		if len(facts) == 0 {
			d.at += 100 * limit.MicrosPerSecond
			if len(d.Sweep(d.at, 16)) == 0 {
				break
			}
		}
		if sweeps > 100 {
			t.Fatalf("sweeps do not end: %v", facts)
		}
	}
	if len(d.Pools(d.at)) != 0 {
		t.Errorf("left: %s", d)
	}
}

// BenchmarkDecideApply is one item from decision to books: its counters are settled, and it is granted again. items/s is 1 over
// the time of one.
func BenchmarkDecideApply(b *testing.B) {
	for _, keys := range []int{1, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			d := newDesk()
			d.terms.Pool.Rate = 1000 * limit.MicroPerToken
			all := make([][]byte, keys)
			for n := range all {
				all[n] = keyOf(n)
			}
			item := &leasepb.Item{Policy: worldPolicy, Session: 1, Want: 3, Waiting: 3, Cost: 1}
			spent := make([]int64, 3*keys)
			regions := []string{"ap", "eu", "us"}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				n, r := i%keys, i/keys%3
				round := uint64(i / keys / 3)
				d.at += 1_000
				item.Key, item.Seq, item.Applied, item.Spent = all[n], round+1, round, spent[3*n+r]
				facts, answer := d.Decide(Command{At: d.at, Region: regions[r], Epoch: "e1", Item: item, Terms: d.terms})
				for _, fact := range facts {
					d.Apply(fact)
				}
				if answer.GetRefusal() != 0 {
					b.Fatal(answer)
				}
				spent[3*n+r] += answer.GetGranted()
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "items/s")
		})
	}
}
