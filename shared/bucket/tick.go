package bucket

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

// The numbers of PROTOCOL.md E2.
const (
	// tickEvery is how often the tick is written. A script trusts the clock for 2 s past it.
	tickEvery = time.Second
	// tickLasts is how long after a tick a process must have read the clock to write the next one.
	tickLasts = limit.Micros(2 * limit.MicrosPerSecond)
	// tickYoung is how old a tick must be for another process' to be worth a write.
	tickYoung = limit.Micros(limit.MicrosPerSecond / 2)
	// readWithin is how long a reading may take to judge anything by it.
	readWithin = 50 * time.Millisecond
	// agreeWithin is how far the store's clock and ours may differ over the time between two readings.
	agreeWithin = 100 * time.Millisecond
	// lookAgain is how soon a round that judged nothing is repeated.
	lookAgain = 200 * time.Millisecond
)

// errSlow: nothing can be said of the clock.
var errSlow = errors.New("reading the store's clock took longer than 50 ms; nothing was judged")

// ticker is what this process knows of the shards' clocks.
type ticker struct {
	sync.Mutex // held for a whole round

	shards map[int]*witness // the map grows before the nodes are asked; each witness is its node's alone meanwhile
}

// witness is what this process knows of one shard's clock.
type witness struct {
	// last is the reading that the next one is judged by, nil where there is none: one that a tick vouched for.
	last *reading
	// stale is the first of the readings that found the clock out of reach of its tick; nil where the last did not.
	stale *reading
}

// reading is one look at a shard's clock. The monotonic time is that of its middle.
type reading struct {
	shard    int
	epoch    string
	now      limit.Micros
	tick     limit.Micros
	measured time.Time
}

// trusted is true where the tick vouches for the reading.
func (r *reading) trusted() bool { return r.now >= r.tick && r.now-r.tick < tickLasts }

// stepped is how much further than ours the store's clock went between two readings.
func (r *reading) stepped(since *reading) time.Duration {
	return time.Duration(r.now-since.now)*time.Microsecond - r.measured.Sub(since.measured)
}

// Ticks keeps the store's clock vouched for until ctx ends: it writes every shard's tick once a second, and where nobody can
// it begins a new epoch (PROTOCOL.md E2). Every gateway and every agent runs it; one of a region is enough.
func (s *Store) Ticks(ctx context.Context, shards func() int) {
	for {
		pause := tickEvery
		if err := s.Tick(ctx, shards()); err != nil {
			pause = lookAgain
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// Tick is one round of Ticks. Its error says that some shard's clock is not vouched for by now. The nodes of a cluster are looked
// at each by itself and all at once: one that does not answer takes no other node's time.
func (s *Store) Tick(ctx context.Context, shards int) error {
	if shards < 1 || shards > MaxShards {
		return couldNotAsk("tick", fmt.Errorf("%d shards; give 1 to %d", shards, MaxShards))
	}
	s.ticker.Lock()
	defer s.ticker.Unlock()
	ctx, cancel := context.WithTimeout(ctx, tickEvery)
	defer cancel()
	s.nodes.refresh()
	byNode := map[string][]int{}
	for shard := range shards {
		if s.ticker.shards[shard] == nil {
			s.ticker.shards[shard] = &witness{}
		}
		node := s.Node(shard)
		byNode[node] = append(byNode[node], shard)
	}
	problems := make(chan error, len(byNode))
	for _, list := range byNode {
		go func() { problems <- s.tick(ctx, list) }()
	}
	var err error
	for range byNode {
		err = cmpErr(err, <-problems)
	}
	return err
}

// tick is one round for the shards of one node.
func (s *Store) tick(ctx context.Context, shards []int) error {
	readings, err := s.readClocks(ctx, shards)
	var ticks []*call
	refused := map[int]refusal{}
	stale := 0
	for _, r := range readings {
		w := s.ticker.shards[r.shard]
		writes, begins, step := w.judge(r)
		switch {
		case writes:
			ticks = append(ticks, &call{
				shards: []int{r.shard}, keys: []string{shardKey(r.shard)}, args: []any{nil, r.epoch, int64(r.now)},
			})
		case begins:
			refused[r.shard] = refusal{
				shard: r.shard, reason: "clock", found: r.epoch, tick: strconv.FormatInt(int64(r.tick), 10), step: step.Microseconds(),
			}
		case w.stale != nil:
			stale++
		}
	}
	problem := s.each(ctx, tickScript, ticks, func(_ int, reply []any) error {
		_, err := status(reply)
		return err
	})
	s.begin(ctx, refused)
	switch {
	case err != nil:
		return couldNotAsk("tick", err)
	case problem == nil && stale+len(refused) > 0:
		problem = couldNotAsk("tick", fmt.Errorf("%d shards: %w", stale+len(refused), errClock))
	}
	return problem
}

// atOnce is how many shards one call of the clock script reads: all that a deployment usually has, for an embedded server is
// slow to begin a script. In a cluster their records lie in different slots: there it is one.
const atOnce = 64

// readClocks reads some shards' clocks, in one go. Our own clock is read before and after: what took too long says nothing. The
// error is of a shard that could not be read; the readings are of those that could.
func (s *Store) readClocks(ctx context.Context, shards []int) ([]*reading, error) {
	most := atOnce
	if s.clustered() {
		most = 1
	}
	var calls []*call
	for list := range slices.Chunk(shards, most) {
		c := &call{shards: list, args: make([]any, 1)}
		for _, shard := range list {
			c.keys = append(c.keys, shardKey(shard))
		}
		calls = append(calls, c)
	}
	before := time.Now()
	s.runAll(ctx, clockScript, calls)
	took := time.Since(before)
	readings := make([]*reading, 0, len(shards))
	var failed error
	for _, c := range calls {
		list, err := []*reading(nil), c.err
		if err == nil {
			list, err = parseClocks(c.reply, c.shards, before.Add(took/2))
		}
		readings, failed = append(readings, list...), cmpErr(failed, err)
	}
	if took > readWithin {
		return nil, cmpErr(failed, errSlow)
	}
	return readings, failed
}

// parseClocks reads clock's reply.
func parseClocks(reply []any, shards []int, measured time.Time) ([]*reading, error) {
	f := fields{reply}
	if len(reply) != 2+2*len(shards) || f.integer() != 1 {
		return nil, errReply
	}
	now := limit.Micros(f.integer())
	readings := make([]*reading, len(shards))
	for i, shard := range shards {
		readings[i] = &reading{shard: shard, now: now, tick: limit.Micros(f.integer()), epoch: f.text(), measured: measured}
	}
	if f.values == nil {
		return nil, errReply
	}
	return readings, nil
}

// judge says what follows of a new reading: that this process may write the tick, or that a new epoch must begin, and by how
// much the clock was seen to step forth before it.
func (w *witness) judge(r *reading) (writes, begins bool, step time.Duration) {
	known := w.last != nil && w.last.epoch == r.epoch
	if known {
		step = r.stepped(w.last)
	}
	agrees := known && step.Abs() <= agreeWithin && r.now >= r.tick
	if r.trusted() {
		w.last, w.stale = r, nil // judged by what comes next
		return agrees && r.now-r.tick >= tickYoung, false, 0
	}
	if agrees {
		w.stale = nil // the next reading finds the tick that this one writes
		return true, false, 0
	}
	if w.stale == nil || w.stale.epoch != r.epoch || w.stale.tick != r.tick {
		w.stale = r
		return false, false, 0
	}
	// Whoever could have written the tick has had the time to.
	return false, r.measured.Sub(w.stale.measured) >= tickEvery, max(0, step)
}
