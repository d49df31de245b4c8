package buckettest

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// Harness is one store under test.
type Harness struct {
	Store *bucket.Store
	// Addr is the server's address, for the suite's own look at what is stored.
	Addr string
	// SetTime sets the store's clock, with what expires by it; nil where real time passes.
	SetTime func(time.Time)
}

// Run is the contract of a region's buckets. Every server that Annona supports passes it; each scenario opens its own store
// and empties the server. Scenarios are named after the rule of PROTOCOL.md, or the case, that they keep.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	t.Helper()
	scenarios := map[string]func(*fixture){
		"golden: 20 at once, 5 after 1 s, 20 after an idle hour":      (*fixture).golden,
		"A2: an allotment that grows gains room and no tokens":        (*fixture).allotmentGrows,
		"A3: spent stays spent: 40 of 100, 140 of 200, 0 of 50":       (*fixture).spentStaysSpent,
		"A3: 100 reloads add nothing":                                 (*fixture).reloads,
		"A3: an older revision could not ask":                         (*fixture).olderRevision,
		"A3: documents loaded in any order are one quota":             (*fixture).anyOrder,
		"A3: refilled up to a change, with the smaller rate":          (*fixture).oneChangeBehind,
		"A3: more than one change behind: without refill":             (*fixture).changesBehind,
		"A3: an unknown bucket is as old as a longer time to full":    (*fixture).longerToFull,
		"A3: tiers change the numbers of one bucket":                  (*fixture).tiers,
		"case 4: a clock that goes back mints nothing":                (*fixture).clockBack,
		"case 6: scripts forgotten in between":                        (*fixture).scriptFlush,
		"case 10: denied by one policy charges none, scope region":    (*fixture).allOrNothingRegion,
		"case 10: denied by one policy charges none, scope global":    (*fixture).allOrNothingGlobal,
		"one token, two takers: one admitted":                         (*fixture).oneToken,
		"own part first, then whole lease tokens":                     (*fixture).ownPartFirst,
		"C1: an answer after its own ttl counts as lapsed":            (*fixture).lateAnswer,
		"C1: a lease that ran out is not renewed":                     (*fixture).renewsNothingLapsed,
		"C2: another session's, seq's or epoch's answer changes none": (*fixture).foreignAnswer,
		"C3: the same answer twice changes nothing":                   (*fixture).sameAnswer,
		"C4: nothing else is asked before the deadline":               (*fixture).deadline,
		"C5: demand is counted once, and only where it is dry":        (*fixture).demandOnce,
		"C5: what was denied from memory is demand":                   (*fixture).deniedFromMemory,
		"waiting: no more than could come":                            (*fixture).waitersBound,
		"returning gives back at most what is left":                   (*fixture).returning,
		"a new session gives up the lease":                            (*fixture).newSession,
		"E1: a record of another server begins a new epoch":           (*fixture).otherServer,
		"E3: an unknown leased bucket is empty until demoted_for":     (*fixture).unknownLeased,
		"E3: scope region keeps its level without the gap":            (*fixture).regionKeepsLevel,
		"E2: a clock without a tick could not ask":                    (*fixture).noTick,
		"E2: a step of an hour adds at most 2 s of refill":            (*fixture).clockSteps,
		"E3: begun for the clock alone, known buckets keep all":       (*fixture).clockEpoch,
		"E3: on_loss empty: an unknown bucket starts empty":           (*fixture).onLossEmpty,
		"E5: a give-back is credited where all it names holds":        (*fixture).givesBack,
		"E5: never more than surely fits":                             (*fixture).givesBackRoom,
		"E5: a lease that lapsed gets nothing back":                   (*fixture).givesBackLease,
		"E4: a record outlives the time to full twice":                (*fixture).life,
		"announcements of demand, at most one in 50 ms":               (*fixture).demands,
		"announcements of fills and of the mirror":                    (*fixture).fills,
		"schedule":                          (*fixture).schedule,
		"the mirror never goes back":        (*fixture).mirror,
		"gateways":                          (*fixture).gateways,
		"identities are stored sealed only": (*fixture).sealedOnly,
		"a cost of 0 changes nothing":       (*fixture).peek,
	}
	scenarios["random calls: store and model agree"] = func(f *fixture) {
		if f.SetTime != nil {
			f.likeTheModel()
		}
	}
	scenarios["promise 1: admitted in any interval at most C + R·T, and no less in all"] = func(f *fixture) {
		if f.SetTime != nil {
			f.bound()
		}
	}
	for _, more := range []map[string]func(*fixture){schedules, limits, windowScenarios, slotScenarios, queueScenarios, banScenarios} {
		maps.Copy(scenarios, more)
	}
	for name, scenario := range scenarios {
		t.Run(name, func(t *testing.T) { scenario(newFixture(t, open(t))) })
	}
}

// fixture is one scenario's store, emptied.
type fixture struct {
	*testing.T
	Harness
	raw *redis.Client
	at  time.Time // of a settable clock
	// still ends the ticks of a store whose clock runs by itself.
	still atomic.Bool
	held  bucket.Holder // of slots
}

func newFixture(t *testing.T, h Harness) *fixture {
	f := &fixture{T: t, Harness: h, raw: client(t, h.Addr), at: time.Unix(1_790_000_000, 0)}
	if f.SetTime != nil {
		f.SetTime(f.at)
	}
	f.must(f.raw.FlushAll(f.ctx()).Err())
	if f.SetTime == nil {
		f.keepTicking()
	}
	return f
}

// tick vouches for the clock as it is, in every shard's record, as a process does that watches it (E2).
func (f *fixture) tick() {
	f.Helper()
	f.must(tick(f.ctx(), f.raw))
}

func tick(ctx context.Context, client *redis.Client) error {
	const script = `
		local now = redis.call('TIME')
		for i = 0, 31 do
			local key = string.format('annona:1:{s%02d}:shard', i)
			local at = string.format('%.0f', now[1] * 1000000 + now[2])
			local _ = redis.call('HEXISTS', key, 'tick') == 1 and redis.call('HSET', key, 'tick', at)
		end
		return 1`
	if err := client.Eval(ctx, script, nil).Err(); err != nil {
		return fmt.Errorf("write the ticks: %w", err)
	}
	return nil
}

// keepTicking ticks while the scenario runs, unless it is still.
func (f *fixture) keepTicking() {
	ctx, cancel := context.WithCancel(f.ctx())
	var wg sync.WaitGroup
	f.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() {
		every := time.NewTicker(200 * time.Millisecond)
		defer every.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-every.C:
				if f.still.Load() {
					continue
				}
				if err := tick(ctx, f.raw); err != nil && ctx.Err() == nil {
					f.Error(err)
				}
			}
		}
	})
}

func (f *fixture) ctx() context.Context { return f.Context() }

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// wait lets d pass by the store's clock.
func (f *fixture) wait(d time.Duration) {
	f.Helper()
	if f.SetTime != nil {
		f.step(d)
		f.tick()
		return
	}
	end := f.now().Add(d)
	f.must(Poll(f.ctx(), d+5*time.Second, func() error {
		if f.now().Before(end) {
			return fmt.Errorf("%s have not passed", d)
		}
		return nil
	}))
}

// step moves a settable clock, and nobody vouches for it.
func (f *fixture) step(d time.Duration) {
	f.at = f.at.Add(d)
	f.SetTime(f.at)
}

// now returns the store's clock.
func (f *fixture) now() time.Time {
	f.Helper()
	now, err := f.raw.Time(f.ctx()).Result()
	f.must(err)
	return now
}

var keys atomic.Uint64

// ref returns a bucket that nobody used before.
func (f *fixture) ref() bucket.Ref {
	var ref bucket.Ref
	binary.BigEndian.PutUint64(ref.Key[:], keys.Add(1))
	ref.Shard = ref.Key.Shard(32)
	return ref
}

func recordOf(ref bucket.Ref) string {
	return fmt.Sprintf("annona:1:{s%02d}:b:%s", ref.Shard, ref.Key)
}

func shardOf(ref bucket.Ref) string { return fmt.Sprintf("annona:1:{s%02d}:shard", ref.Shard) }

// region returns a charge of scope region, of cost 1.
func (f *fixture) region(capacity limit.Tokens, perSecond int64) bucket.Charge {
	ref := f.ref()
	return bucket.Charge{
		Ref: ref, Policy: "p-" + ref.Key.String(), Revision: 1, Cost: 1, Sealed: []byte("sealed"),
		Part: limit.Budget{Capacity: capacity, Rate: limit.Rate(perSecond * limit.MicroPerToken)},
	}
}

// global returns a charge of scope global without allotment, of cost 1.
func (f *fixture) global(pool limit.Tokens) bucket.Charge {
	ref := f.ref()
	return bucket.Charge{
		Ref: ref, Policy: "p-" + ref.Key.String(), Revision: 1, Cost: 1, Sealed: []byte("sealed"), Leased: true,
		Pool: limit.Budget{Capacity: pool, Rate: limit.MicroPerToken},
	}
}

// take takes charges without waiting.
func (f *fixture) take(charges ...bucket.Charge) bucket.Verdict {
	f.Helper()
	v, err := f.Store.Take(f.ctx(), bucket.Request{Charges: charges})
	f.must(err)
	return v
}

// wants takes charges and would wait a second for a lease.
func (f *fixture) wants(charges ...bucket.Charge) bucket.Verdict {
	f.Helper()
	v, err := f.Store.Take(f.ctx(), bucket.Request{Charges: charges, MayWait: true, WaitFor: time.Second})
	f.must(err)
	return v
}

// admitted counts how many of n takes are admitted.
func (f *fixture) admitted(n int, charges ...bucket.Charge) (count int) {
	f.Helper()
	for range n {
		if f.take(charges...).Outcome == bucket.Admitted {
			count++
		}
	}
	return count
}

func (f *fixture) view(ref bucket.Ref) bucket.View {
	f.Helper()
	views, err := f.Store.Views(f.ctx(), []bucket.Ref{ref})
	f.must(err)
	return views[0]
}

// ask makes an item about ref as it is; nil where the store refuses.
func (f *fixture) ask(p bucket.Plan) *bucket.Asked {
	f.Helper()
	if p.Deadline == 0 {
		p.Deadline = 3 * time.Second
	}
	asked, err := f.Store.Ask(f.ctx(), []bucket.Plan{p})
	f.must(err)
	return asked[0]
}

// answer is a grant of n tokens for what was asked.
func answer(a *bucket.Asked, n limit.Tokens) bucket.Grant {
	return bucket.Grant{
		Ref: a.Ref, Epoch: a.Epoch, Session: a.Item.GetSession(), Seq: a.Item.GetSeq(), Granted: n, TTL: 10 * time.Second,
	}
}

func (f *fixture) fill(g bucket.Grant) bool {
	f.Helper()
	applied, err := f.Store.Fill(f.ctx(), []bucket.Grant{g})
	f.must(err)
	return applied[0]
}

// lease makes c's bucket known and gives it a lease of n tokens.
func (f *fixture) lease(c bucket.Charge, n limit.Tokens) *bucket.Asked {
	f.Helper()
	f.wants(c)
	asked := f.ask(bucket.Plan{View: f.view(c.Ref), Want: n})
	if asked == nil || !f.fill(answer(asked, n)) {
		f.Fatalf("no lease for %s", c.Key)
	}
	return asked
}

// equal fails unless got is want.
func equal[T comparable](f *fixture, what string, got, want T) {
	f.Helper()
	if got != want {
		f.Fatalf("%s = %v, want %v", what, got, want)
	}
}

// age makes the store know the shard's buckets for so much longer than it does.
func (f *fixture) age(ref bucket.Ref, by time.Duration) {
	f.Helper()
	f.view(ref) // begins the epoch where there is none
	f.must(f.raw.HIncrBy(f.ctx(), shardOf(ref), "known", -by.Microseconds()).Err())
}

func (f *fixture) field(key, name string) int64 {
	f.Helper()
	text, err := f.raw.HGet(f.ctx(), key, name).Result()
	f.must(err)
	n, err := strconv.ParseInt(text, 10, 64)
	f.must(err)
	return n
}
