package admit

import (
	"context"
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
		s.admitter.options.Telemetry.Log.WarnContext(ctx, "costs stay as charged", "requests", 1, "why", why)
	})
}

func (s *settler) count(ctx context.Context, outcome string, n int) {
	s.admitter.options.Telemetry.Metrics.Corrections.Add(ctx, int64(n), metric.WithAttributes(attribute.String("outcome", outcome)))
}

// run settles until ctx ends, and then what has gathered, for at most a few times the store's patience.
func (s *settler) run(ctx context.Context) {
	var beside sync.WaitGroup
	for range settlersAtOnce {
		beside.Go(func() { s.correct(ctx) })
	}
	beside.Go(func() { s.release(ctx) })
	beside.Wait()
}

func (s *settler) correct(ctx context.Context) {
	for {
		select {
		case corrections := <-s.queue:
			s.apply(ctx, corrections)
			continue
		default:
		}
		select {
		case corrections := <-s.queue:
			s.apply(ctx, corrections)
		case <-ctx.Done():
			return // the queue is empty
		}
	}
}

func (s *settler) apply(ctx context.Context, corrections []bucket.Correction) {
	if err := s.admitter.options.Settler.Correct(context.WithoutCancel(ctx), corrections); err != nil {
		s.failed(ctx, corrections, err.Error())
		return
	}
	s.count(ctx, "settled", len(corrections))
	for _, c := range corrections {
		if c.Actual < c.Charge.Cost { // what was denied here for want of it may fit now
			s.admitter.memory.filled(c.Charge.Key)
		}
	}
}

// release gives slots back, again every second while the store cannot be asked.
func (s *settler) release(ctx context.Context) {
	again := time.NewTicker(bucket.RenewEvery)
	defer again.Stop()
	for {
		ended := false
		select {
		case <-s.poke:
		case <-again.C:
		case <-ctx.Done():
			ended = true
		}
		for s.releaseSome(context.WithoutCancel(ctx)) {
		}
		if ended {
			return // what could not be released now ends with the holder
		}
	}
}

// releaseSome is true where there may be more to release at once.
func (s *settler) releaseSome(ctx context.Context) bool {
	s.mu.Lock()
	some := s.slots[:min(len(s.slots), maxReleases):min(len(s.slots), maxReleases)]
	s.slots = s.slots[len(some):]
	s.mu.Unlock()
	if len(some) == 0 {
		return false
	}
	if _, err := s.admitter.options.Settler.GiveBack(ctx, some); err != nil {
		s.mu.Lock()
		s.slots = append(some, s.slots...)
		s.mu.Unlock()
		return false
	}
	return true
}
