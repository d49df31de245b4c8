package lessor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/annona-gateway/annona/allocator/journal"
	"github.com/annona-gateway/annona/allocator/ledger"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/limit"
)

const (
	// sweepEvery is how often leases that lapsed are written off and full, idle pools forgotten; sweepMost how many at once.
	// It does not bear on the bound: a lease is over when its time is, whenever that is written down.
	sweepEvery = time.Second
	sweepMost  = 1024
	// batchItems is about how many items one batch decides: enough for the journal's round trip to be shared, few enough
	// for a record or two.
	batchItems = 8 * lease.MaxItems
	// backoffFirst and backoffMost bound the wait before a journal that failed is opened again.
	backoffFirst = 100 * time.Millisecond
	backoffMost  = 2 * time.Second
	// steadyAfter is how long a shard serves before an earlier failure is forgotten. Two allocators that fence each other
	// in turn slow down so, instead of filling the journal.
	steadyAfter = 10 * time.Second
	// commitTimeout bounds an append whatever the journal does.
	commitTimeout = 5 * time.Second
)

// shard is one slice of the key space and its writer.
type shard struct {
	lessor  *Lessor
	number  int
	log     *slog.Logger
	queue   chan *envelope
	queued  atomic.Int64 // items in queue
	asks    chan func(books *ledger.Ledger, at limit.Micros)
	trouble atomic.Pointer[string] // why it does not serve; nil if it does
	denials *denials

	// loop is owned by run.
	loop struct {
		books   *ledger.Ledger
		term    string
		last    uint64 // the newest record's number
		terms   terms
		contact uint64 // of the newest answer
		numbers *numbers
		stop    func() // ends the subscription; nil before there is one
	}
}

func newShard(l *Lessor, number int) *shard {
	s := &shard{
		lessor:  l,
		number:  number,
		log:     l.cfg.Telemetry.Log.With("shard", number),
		queue:   make(chan *envelope, queueEnvelopes),
		asks:    make(chan func(*ledger.Ledger, limit.Micros)),
		denials: newDenials(),
	}
	s.suffer("it has not begun")
	return s
}

// suffer notes why the shard does not serve, "" if it does.
func (s *shard) suffer(why string) {
	if why == "" {
		s.trouble.Store(nil)
		return
	}
	s.trouble.Store(&why)
}

func (s *shard) why() string {
	if why := s.trouble.Load(); why != nil {
		return *why
	}
	return ""
}

// run is the shard's loop: open the journal, serve until it fails, open it again. It returns nil once ctx has ended.
func (s *shard) run(ctx context.Context) error {
	defer s.end()
	failures := 0
	for ctx.Err() == nil {
		err := s.open(ctx)
		if err == nil {
			if err := s.listen(); err != nil {
				return err
			}
			began := time.Now()
			s.suffer("")
			if err = s.serve(ctx); err == nil {
				return nil
			}
			if time.Since(began) > steadyAfter {
				failures = 0
			}
		}
		if ctx.Err() != nil {
			return nil // ended while failing: nothing of it was answered, and the next writer replays
		}
		failures++
		s.suffer(err.Error())
		s.tell(ctx, err)
		pause(ctx, min(backoffFirst<<min(failures-1, 10), backoffMost))
	}
	return nil
}

// tell logs why the shard begins anew.
func (s *shard) tell(ctx context.Context, err error) {
	switch {
	case errors.Is(err, journal.ErrConflict):
		s.log.WarnContext(ctx, "another writer serves this shard too; its journal is read again", "term", s.loop.term, "error", err)
	case errors.Is(err, errNoRegions):
		s.log.InfoContext(ctx, "this shard waits for the regions document")
	default:
		s.log.WarnContext(ctx, "this shard's journal failed; it is read again", "term", s.loop.term, "error", err)
	}
}

// listen subscribes, once: while the journal is opened again envelopes gather in the queue, and are refused beyond it.
func (s *shard) listen() (err error) {
	if s.loop.stop == nil {
		s.loop.stop, err = s.lessor.subscribe(s.number, s.receive)
	}
	return err
}

// end leaves nothing behind: no subscription, and no envelope whose trace would stay open.
func (s *shard) end() {
	s.suffer("it has ended")
	if s.loop.stop != nil {
		s.loop.stop()
	}
	for _, env := range s.gather(nil) {
		env.end("the allocator stopped")
	}
}

// serve takes batches until ctx ends, and then what has gathered, or until the journal fails.
func (s *shard) serve(ctx context.Context) error {
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for {
		select {
		case env := <-s.queue:
			if err := s.decide(s.gather(env)); err != nil {
				return err
			}
		case <-sweep.C:
			if err := s.sweep(); err != nil {
				return err
			}
		case look := <-s.asks:
			look(s.loop.books, s.lessor.cfg.Now())
		case <-ctx.Done():
			return s.finish()
		}
	}
}

// finish takes no more envelopes and decides those that came before.
func (s *shard) finish() error {
	s.suffer("it is ending")
	s.loop.stop()
	if batch := s.gather(nil); len(batch) > 0 {
		return s.decide(batch)
	}
	return nil
}

// gather returns first, if there is one, and what else has come, up to about batchItems.
func (s *shard) gather(first *envelope) []*envelope {
	var batch []*envelope
	items := 0
	take := func(env *envelope) {
		batch = append(batch, env)
		items += len(env.GetItems())
		s.queued.Add(-int64(len(env.GetItems())))
	}
	if first != nil {
		take(first)
	}
	for items < batchItems && len(batch) < queueEnvelopes {
		select {
		case env := <-s.queue:
			take(env)
		default:
			return batch
		}
	}
	return batch
}

// sweep writes down what time alone brought.
func (s *shard) sweep() error {
	facts := s.loop.books.Sweep(s.lessor.cfg.Now(), sweepMost)
	if len(facts) == 0 {
		return nil
	}
	var r records
	for _, fact := range facts {
		s.loop.books.Apply(fact)
		if err := r.add(fact); err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
	}
	return s.commit(nil, &r)
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
