package ledger

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/annona-gateway/annona/allocator/ledger/factpb"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
)

// world is a model of everything around a ledger: regions that really spend, on clocks of their own, behind a network that
// delays, repeats, reorders and loses, and a writer that is replaced, whose clock runs back and whose journal may be lost.
// A script of bytes drives it, so that the fuzzer and the property test share it.
type world struct {
	t      testing.TB
	script []byte

	now     limit.Micros // true time
	clock   limit.Micros // what the writer's clock is ahead of it
	ledger  *Ledger
	journal [][]byte // marshalled facts
	writers int
	fixed   bool // the numbers never change
	terms   Terms

	stores   []*store // one a region, and those that were demoted and may serve yet
	epochs   int
	requests []request
	replies  []reply

	lostUntil limit.Micros // when the leases of a lost journal are over

	oracle  oracle
	highest limit.Tokens // what S may still be above the capacity since that fell
	spent   limit.Tokens
}

// store is one region's bucket, after the rules of PROTOCOL.md C.
type store struct {
	region            string
	epoch             string
	session           uint64
	seq, applied      uint64
	left              limit.Tokens
	expiresAt, sentAt limit.Micros // of its own clock
	counters          counters
	ahead             limit.Micros // what its clock is ahead of true time
	driftPPM          int64
	demoted           bool
}

type request struct {
	region, epoch string
	item          *leasepb.Item
}

type reply struct {
	region, epoch string
	answer        *leasepb.Answer
}

// oracle is the limit itself: a token bucket that sees every spent token at true time, in millionths of micro-tokens.
type oracle struct {
	level, full, rate int64
	at                limit.Micros
}

func (o *oracle) spend(at limit.Micros, n limit.Tokens) bool {
	o.level = min(o.full, o.level+o.rate*int64(at-o.at))
	o.at = at
	o.level -= int64(n) * limit.MicroPerToken * limit.MicroPerToken
	return o.level >= 0
}

const worldPolicy = "api-per-user"

var (
	worldKey     = []byte("0123456789abcdef")
	worldBudgets = []limit.Budget{
		{Capacity: 100, Rate: 10 * limit.MicroPerToken}, {Capacity: 100, Rate: 333_333}, {Capacity: 7, Rate: 900_001},
		{Capacity: 60, Rate: 10 * limit.MicroPerToken}, {Capacity: 30, Rate: 0}, {Capacity: 0, Rate: 0},
	}
	worldWeights = []map[string]uint64{{"ap": 1, "eu": 1, "us": 1}, {"ap": 1, "eu": 5, "us": 2}, {"eu": 1, "us": 3}}
)

func newWorld(t testing.TB, script []byte) *world {
	w := &world{
		t: t, script: script, now: 1000 * limit.MicrosPerSecond, ledger: New(),
		terms: Terms{
			Pool: worldBudgets[0], Weights: worldWeights[0],
			TTL: 10 * limit.MicrosPerSecond, Margin: limit.MicrosPerSecond / 2, DriftPPM: 10_000,
		},
		highest: 100,
	}
	// In most worlds the numbers stay, and then the limit to hold is theirs; else it is the largest there are.
	w.fixed = w.pick(4) > 0
	if w.fixed {
		w.terms.Pool = worldBudgets[w.pick(4)]
	}
	full := int64(w.terms.Pool.Capacity) * 1e12
	w.oracle = oracle{level: full, full: full, rate: int64(w.terms.Pool.Rate), at: w.now}
	for i, region := range []string{"ap", "eu", "us"} {
		s := &store{region: region, ahead: limit.Micros(i) * 12345 * limit.MicrosPerSecond, driftPPM: int64(i-1) * 9_000}
		w.renew(s)
		w.stores = append(w.stores, s)
	}
	w.begin(false)
	return w
}

// pick takes the next byte of the script as a choice of n.
func (w *world) pick(n int) int {
	if len(w.script) == 0 || n == 0 {
		return 0
	}
	b := w.script[0]
	w.script = w.script[1:]
	return int(b) % n
}

// steps are the world's events; the table repeats what should happen often.
var steps = []func(*world){
	(*world).wait, (*world).wait, (*world).waitLong,
	(*world).spendSome, (*world).spendSome, (*world).spendAll, (*world).spendAll,
	(*world).ask, (*world).ask, (*world).ask, (*world).ask,
	(*world).decide, (*world).decide, (*world).decide, (*world).decide, (*world).decideAgain,
	(*world).fill, (*world).fill, (*world).fill, (*world).fillAgain,
	(*world).roundTrip, (*world).roundTrip, (*world).roundTrip, (*world).roundTrip,
	(*world).lose, (*world).sweep, (*world).sweep,
	(*world).retune, (*world).reweigh, (*world).fault, (*world).fault,
}

// faults are the rarer events.
var faults = []func(*world){
	(*world).newSession, (*world).newSession, (*world).newEpoch, (*world).newEpoch, (*world).restart, (*world).restart,
	(*world).outage, (*world).loseJournal, (*world).loseJournal,
}

// run plays the whole script, checking the promise after every event, and then the peace after it.
func (w *world) run() {
	for len(w.script) > 0 {
		steps[w.pick(len(steps))](w)
		w.check()
	}
	w.replay()
	w.settleDown()
}

// local is what s's own clock reads.
func (w *world) local(s *store) limit.Micros {
	return w.now + s.ahead + w.now*limit.Micros(s.driftPPM)/limit.Whole
}

func (w *world) wait()     { w.now += limit.Micros(w.pick(256)) * 2_003 }
func (w *world) waitLong() { w.now += limit.Micros(w.pick(256)) * 20_003 }
func (w *world) outage()   { w.now += limit.Micros(w.pick(256)) * 100_003 }

func (w *world) fault() {
	if w.pick(4) == 3 {
		faults[w.pick(len(faults))](w)
	}
}

func (w *world) store() *store { return w.stores[w.pick(len(w.stores))] }

// touch moves what ran out to lapsed, as every script that touches a bucket does first.
func (w *world) touch(s *store) {
	if s.left > 0 && w.local(s) >= s.expiresAt {
		s.counters.lapsed += s.left
		s.left = 0
	}
}

func (w *world) spend(s *store, most limit.Tokens) {
	w.touch(s)
	n := min(s.left, most)
	s.left -= n
	s.counters.spent += n
	w.spent += n
	if !w.oracle.spend(w.now, n) {
		w.t.Fatalf("more was spent than the limit admits: %d too many at %s\n%s", -w.oracle.level/1e12, span(w.now), w.ledger)
	}
}

func (w *world) spendSome() { w.spend(w.store(), limit.Tokens(w.pick(20))) }
func (w *world) spendAll()  { w.spend(w.store(), 1<<40) }

// item makes s's next item, as the store's one script does.
func (w *world) item(s *store, draining bool) request {
	w.touch(s)
	if giveBack := min(s.left, limit.Tokens(w.pick(8))); w.pick(4) == 0 || draining {
		if draining {
			giveBack = s.left
		}
		s.left -= giveBack
		s.counters.returned += giveBack
	}
	s.seq++
	s.sentAt = w.local(s)
	s.counters.denied += limit.Tokens(w.pick(3))
	item := &leasepb.Item{
		Policy: worldPolicy, Key: worldKey, Session: s.session, Seq: s.seq, Applied: s.applied,
		Spent: int64(s.counters.spent), Returned: int64(s.counters.returned), Lapsed: int64(s.counters.lapsed),
		Denied: int64(s.counters.denied), Left: int64(s.left), Cost: 1, Draining: draining,
	}
	if !draining {
		item.Cost = int64(1 + w.pick(5))
		item.Waiting = int64(w.pick(60))
		item.Want = item.Waiting + int64(w.pick(60))
	}
	return request{region: s.region, epoch: s.epoch, item: item}
}

func (w *world) ask() {
	r := w.item(w.store(), w.pick(16) == 1)
	w.requests = append(w.requests, r)
}

// choose takes one of list, and removes it where keep is false.
func choose[T any](w *world, list *[]T, keep bool) (x T, ok bool) {
	if len(*list) == 0 {
		return x, false
	}
	i := w.pick(len(*list))
	x = (*list)[i]
	if !keep {
		*list = slices.Delete(*list, i, i+1)
	}
	return x, true
}

func (w *world) decide()      { w.decideOne(false) }
func (w *world) decideAgain() { w.decideOne(true) }
func (w *world) decideOne(keep bool) {
	if r, ok := choose(w, &w.requests, keep); ok {
		w.replies = append(w.replies, w.decided(r))
	}
}

// decided has the writer decide r, by a clock that sometimes runs back and goes on from there.
func (w *world) decided(r request) reply {
	switch w.pick(32) {
	case 30:
		w.clock -= limit.Micros(w.pick(256)) * 1_003
	case 31:
		w.clock -= limit.Micros(w.pick(256)) * 100_003
	}
	at := w.now + w.clock
	before := w.picture()
	facts, answer := w.ledger.Decide(Command{At: at, Region: r.region, Epoch: r.epoch, Item: r.item, Terms: w.terms})
	if after := w.picture(); before != after {
		w.t.Fatalf("Decide changed the ledger\n%s\n%s", before, after)
	}
	w.apply(facts...)
	again, same := w.ledger.Decide(Command{At: at, Region: r.region, Epoch: r.epoch, Item: r.item, Terms: w.terms})
	if answer.GetRefusal() == 0 && (len(again) > 0 || !proto.Equal(answer, same)) {
		w.t.Fatalf("a repeat was answered %v with %d facts, want %v\n%s", same, len(again), answer, w.ledger)
	}
	return reply{region: r.region, epoch: r.epoch, answer: answer}
}

// picture returns the ledger in words, now and then, for that is slow.
func (w *world) picture() string {
	if len(w.journal)%16 == 0 {
		return w.ledger.String()
	}
	return ""
}

func (w *world) apply(facts ...*factpb.Fact) {
	for _, fact := range facts {
		data, err := proto.Marshal(fact)
		if err != nil {
			w.t.Fatal(err)
		}
		w.journal = append(w.journal, data)
		w.ledger.Apply(fact)
	}
}

func (w *world) fill()      { w.fillOne(false) }
func (w *world) fillAgain() { w.fillOne(true) }
func (w *world) fillOne(keep bool) {
	if r, ok := choose(w, &w.replies, keep); ok {
		w.filled(r)
	}
}

// filled applies r to the store that it names, if that still waits for it.
func (w *world) filled(r reply) {
	a := r.answer
	for _, s := range w.stores {
		if s.region != r.region || s.epoch != r.epoch || s.session != a.GetSession() || s.seq != a.GetSeq() ||
			s.applied == a.GetSeq() || a.GetRefusal() != 0 {
			continue
		}
		w.touch(s)
		s.applied = a.GetSeq()
		end := s.sentAt + limit.Micros(a.GetTtlUs())
		if w.local(s) >= end {
			s.counters.lapsed += limit.Tokens(a.GetGranted())
			continue
		}
		s.left += limit.Tokens(a.GetGranted())
		s.expiresAt = max(s.expiresAt, end)
	}
}

// roundTrip asks and is answered with no fault in between, and may spend all at once.
func (w *world) roundTrip() {
	s := w.store()
	r := w.item(s, false)
	if w.pick(2) == 0 {
		r.item.Want, r.item.Waiting, r.item.Cost = 100, 100, 1
	}
	w.filled(w.decided(r))
	if w.pick(2) == 0 {
		w.spend(s, 1<<40)
	}
}

func (w *world) lose() {
	if w.pick(2) == 0 {
		choose(w, &w.requests, false)
		return
	}
	choose(w, &w.replies, false)
}

func (w *world) sweep() { w.apply(w.ledger.Sweep(w.now+w.clock, 1+w.pick(4))...) }

// newSession gives up what the session had left.
func (w *world) newSession() { w.store().begin() }

func (s *store) begin() {
	s.session++
	s.seq, s.applied, s.left, s.counters = 0, 0, 0, counters{}
}

// newEpoch replaces a region's store by a new one. The old one does not know it yet: it may serve its lease, be asked by its
// agent and apply answers.
func (w *world) newEpoch() {
	i := w.pick(3)
	old := *w.stores[i]
	old.demoted = true
	if len(w.stores) < 8 {
		w.stores = append(w.stores, &old)
	}
	w.renew(w.stores[i])
}

func (w *world) renew(s *store) {
	w.epochs++
	*s = store{region: s.region, ahead: s.ahead, driftPPM: s.driftPPM, epoch: fmt.Sprintf("e%d", w.epochs), session: 1}
}

// retune changes the numbers, and has the writer hear of it at once: from here on the limit's rate is the new one.
func (w *world) retune() {
	if w.fixed {
		return
	}
	w.oracle.spend(w.now, 0)
	w.terms.Pool = worldBudgets[w.pick(len(worldBudgets))]
	w.oracle.rate = int64(w.terms.Pool.Rate)
	w.filled(w.decided(w.item(w.stores[0], true)))
}

func (w *world) reweigh() { w.terms.Weights = worldWeights[w.pick(len(worldWeights))] }

func (w *world) begin(empty bool) {
	w.writers++
	w.apply(w.ledger.Begin(w.now+w.clock, fmt.Sprintf("t%d", w.writers), w.terms, empty))
}

// restart replaces the writer by one whose clock reads anything.
func (w *world) restart() {
	w.replay()
	w.clock = limit.Micros(w.pick(256)-128) * 7 * limit.MicrosPerSecond
	w.begin(false)
}

// loseJournal loses the journal's tail, or all of it, which the writer learns from a term that it does not know.
func (w *world) loseJournal() {
	w.journal = w.journal[:len(w.journal)*w.pick(4)/4]
	w.ledger = w.replayed()
	w.clock = limit.Micros(w.pick(256)-128) * 7 * limit.MicrosPerSecond
	w.begin(true)
	w.lostUntil = w.now + w.terms.life()
	for _, s := range w.stores { // their agents ask at once, and go on while the pools are empty
		w.filled(w.decided(w.item(s, false)))
		w.waitLong()
		w.filled(w.decided(w.item(s, false)))
	}
}
