package admit

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/annona-gateway/annona/shared/bucket"
)

const (
	// maxSettlements is how many ended requests may wait for their settlement; what ends beyond keeps its cost as charged.
	maxSettlements = 8192
	// settlersAtOnce is how many calls to the store settle at a time.
	settlersAtOnce = 4
	// maxReleases is how many slots one call releases.
	maxReleases = 512
	// lastSettle is how long it takes at most to settle what has gathered when the gateway ends.
	lastSettle = 2 * time.Second
)

// settlement is what one ended request owes the store.
type settlement struct {
	slots       []bucket.Back
	corrections []bucket.Correction
}

// settler settles ended requests beside the requests, so that no client waits for it. A cost is corrected once: if nobody knows
// whether it was, it stays as it is, and that is counted. A slot is released until an answer comes, for it would be lost else.
type settler struct {
	admitter *Admitter
	queue    chan []bucket.Correction
	warn     rate.Sometimes

	mu    sync.Mutex
	slots []bucket.Back // bounded by the slots that were admitted
	poke  chan struct{}
}

func newSettler(a *Admitter) *settler {
	return &settler{
		admitter: a, queue: make(chan []bucket.Correction, maxSettlements), poke: make(chan struct{}, 1),
		warn: rate.Sometimes{Interval: 10 * time.Second},
	}
}

// settle never waits.
func (s *settler) settle(owed settlement) {
	if len(owed.slots) > 0 {
		s.mu.Lock()
		s.slots = append(s.slots, owed.slots...)
		s.mu.Unlock()
		select {
		case s.poke <- struct{}{}:
		default:
		}
	}
	if len(owed.corrections) == 0 {
		return
	}
	select {
	case s.queue <- owed.corrections:
	default:
		s.failed(context.Background(), owed.corrections, "more requests end than the store settles")
	}
}

// misread tells of an upstream that says costs which are none.
func (s *settler) misread(err error) {
	s.warn.Do(func() {
		s.admitter.options.Telemetry.Log.Warn("an upstream says an actual cost that is none; the cost stays as charged", "error", err)
	})
	s.admitter.options.Telemetry.Metrics.Corrections.Add(context.Background(), 1, metric.WithAttributes(attribute.String("outcome", "misread")))
}

func (s *settler) failed(ctx context.Context, corrections []bucket.Correction, why string) {
	s.count(ctx, "failed", len(corrections))
	s.warn.Do(func() {
		s.admitter.options.Telemetry.Log.WarnContext(ctx, "costs stay as charged", "costs", len(corrections), "why", why)
	})
}

func (s *settler) count(ctx context.Context, outcome string, n int) {
	s.admitter.options.Telemetry.Metrics.Corrections.Add(ctx, int64(n), metric.WithAttributes(attribute.String("outcome", outcome)))
}

// run settles until ctx ends, and then for at most lastSettle what has gathered.
func (s *settler) run(ctx context.Context) {
	last, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lastSettle, cancel) })()
	var beside sync.WaitGroup
	for range settlersAtOnce {
		beside.Go(func() { s.correct(ctx, last) })
	}
	beside.Go(func() { s.release(ctx, last) })
	beside.Wait()
}

// correct corrects costs by last, until ctx ends and the queue is empty.
func (s *settler) correct(ctx, last context.Context) {
	for {
		select {
		case corrections := <-s.queue:
			s.apply(last, corrections)
			continue
		default:
		}
		select {
		case corrections := <-s.queue:
			s.apply(last, corrections)
		case <-ctx.Done():
			return // the queue is empty
		}
	}
}

func (s *settler) apply(ctx context.Context, corrections []bucket.Correction) {
	by := s.admitter.Snapshot()
	some := by.rebase(corrections)
	err := s.admitter.options.Settler.Correct(ctx, some)
	if errors.Is(err, bucket.ErrOlderRevision) { // nothing was corrected
		some = s.admitter.newer(ctx, by).rebase(corrections)
		err = s.admitter.options.Settler.Correct(ctx, some)
	}
	if err != nil {
		s.failed(ctx, some, err.Error())
		return
	}
	s.count(ctx, "settled", len(some))
	for _, c := range some {
		if c.Actual < c.Charge.Cost { // what was denied here for want of it may fit now
			s.admitter.memory.filled(c.Charge.Key)
		}
	}
}

// rebase makes corrections ones by the numbers of now: what is charged by those of the request's time would bring them into force
// again. What nobody counts any more is left out.
func (s *Snapshot) rebase(corrections []bucket.Correction) []bucket.Correction {
	kept := make([]bucket.Correction, 0, len(corrections))
	for _, c := range corrections {
		charge, found := s.rebased(c.Charge)
		if !found && c.Actual > c.Charge.Cost {
			continue
		}
		c.Charge = charge
		kept = append(kept, c)
	}
	return kept
}

// release gives slots back, again every second while the store cannot be asked.
func (s *settler) release(ctx, last context.Context) {
	again := time.NewTicker(bucket.RenewEvery)
	defer again.Stop()
	for {
		select {
		case <-s.poke:
		case <-again.C:
		case <-ctx.Done():
			s.releaseAll(last)
			return // what could not be released now ends with the holder
		}
		s.releaseAll(last)
	}
}

// releaseAll gives back all slots that have gathered. A part of them that the store does not take comes again next time: it may be
// that only some of the shards can be asked. It goes on for at most a second.
func (s *settler) releaseAll(ctx context.Context) {
	s.mu.Lock()
	all := s.slots
	s.slots = nil
	s.mu.Unlock()
	var kept []bucket.Back
	begun := time.Now()
	for len(all) > 0 {
		some := all[:min(len(all), maxReleases)]
		all = all[len(some):]
		if _, err := s.admitter.options.Settler.GiveBack(ctx, some); err != nil {
			kept = append(kept, some...)
		}
		if time.Since(begun) > bucket.RenewEvery {
			kept = append(all, kept...) // those that were not tried are first
			break
		}
	}
	if len(kept) > 0 {
		s.mu.Lock()
		s.slots = append(kept, s.slots...)
		s.mu.Unlock()
	}
}
