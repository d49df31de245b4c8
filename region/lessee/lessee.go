// Package lessee is a region's end of the lease protocol: it turns announcements and due looks into items, items into envelopes
// and answers into fills. What to ask is refill's to plan, what a bucket holds is its store's to say; the lessee moves it.
//
// One loop ([Lessee.Run]) owns which buckets are to be looked at and how many envelopes each shard has out. It never waits for
// the store or the allocator: turns (look, plan, make items), envelopes, polls and checks run beside it and report back. A turn
// looks at up to 512 buckets; every shard in it holds one of a fixed number of slots until its envelope is answered or given
// up, so an allocator that is out costs its own shards' slots and no memory.
//
// Nothing here is needed for the bound. Items and fills are checked by one script each (epoch, session, seq), so a lost,
// repeated or late message, a second agent or a restart costs a retry and never a token.
package lessee

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

const (
	// coalesce is how long the first announcement waits for others that share its envelope: much less than any round trip
	// between regions, and at most the 5 ms of the design.
	coalesce = 4 * time.Millisecond
	// mostPending bounds the buckets that wait to be looked at; beyond it an announcement is dropped, which costs a retry.
	mostPending = 16_384
	// mostHeld bounds the buckets remembered for the drain; others lapse if they do not come due while it runs.
	mostHeld = 65_536
	// slotsPerShard and slots bound the envelopes out. More slots, more requests a slow allocator has to answer at once; fewer,
	// longer queues here.
	slotsPerShard, slots = 4, 64
	// dueEvery is how often the stores' schedules are polled; settling and returning bear that delay.
	dueEvery = 250 * time.Millisecond
	// tickEvery is the grain of back-offs and of looks that come a little later.
	tickEvery = 25 * time.Millisecond
	// drainFor is how long the last settlements may take, within the 10 s that every role has.
	drainFor = 9 * time.Second
	// storeWait bounds one call to the store: an agent has no request waiting on it, so it is more patient than a gateway.
	storeWait = time.Second
)

// Store is what the lessee needs of a region's Redis. See [bucket.Store] for what each verb promises.
type Store interface {
	Views(ctx context.Context, refs []bucket.Ref) ([]bucket.View, error)
	Ask(ctx context.Context, plans []bucket.Plan) ([]*bucket.Asked, error)
	Fill(ctx context.Context, grants []bucket.Grant) ([]bool, error)
	Due(ctx context.Context, shards, most int) ([]bucket.Ref, error)
	Schedule(ctx context.Context, dues []bucket.Due) error
	Demands(ctx context.Context, f func(bucket.Announcement)) error
	Gateways(ctx context.Context) ([]bucket.Gateway, error)
}

// Requester sends one request and waits for its reply. It returns nats.ErrNoResponders where nobody serves the subject.
type Requester interface {
	RequestMsgWithContext(ctx context.Context, msg *nats.Msg) (*nats.Msg, error)
}

var (
	_ Store     = (*bucket.Store)(nil)
	_ Requester = (*nats.Conn)(nil)
)

// Config names the lessee.
type Config struct {
	Region string
	// Agent is this process' id, for operators.
	Agent string
	// NewEpoch is called when a shard's epoch has changed: its store has lost what others wrote there too. It must not block.
	NewEpoch func()
}

// Lessee keeps one region's leases.
type Lessee struct {
	cfg   Config
	store Store
	bus   Requester
	tel   *telemetry.Telemetry

	// beside counts the goroutines that run beside the loop; they answer on these channels, each of which holds as many
	// answers as can be out.
	beside  sync.WaitGroup
	heard   chan struct{}
	dues    chan []bucket.Ref
	secrets chan secret
	looked  chan []bucket.Ref
	done    chan done

	warnings warnings

	loop struct { // owned by Run
		queue    queue
		busy     map[bucket.Ref]bool // in a turn; true if announced again meanwhile
		out      map[int]int         // envelopes out, by shard
		total    int
		pauses   map[int]time.Time // shards to leave alone until then
		held     map[bucket.Ref]struct{}
		secret   secret
		polling  bool
		draining bool
		flushing bool // the flush timer runs
		drained  <-chan time.Time
		flush    *time.Timer
		check    *time.Timer
	}

	mu struct { // any goroutine
		sync.Mutex
		announced map[bucket.Ref]struct{}
		shards    int
		times     policy.Times
		roundTrip time.Duration
		contacts  map[int]contact // by shard
		epochs    map[int]string  // by shard
		secret    secret
	}
}

// warnings are logged seldom: what goes wrong goes wrong for every envelope.
type warnings struct {
	lost, refused, store, overflow, session rate.Sometimes
}

// New returns a lessee that has not begun.
func New(cfg Config, store Store, bus Requester, tel *telemetry.Telemetry) *Lessee {
	l := &Lessee{
		cfg: cfg, store: store, bus: bus, tel: tel,
		heard: make(chan struct{}, 1), dues: make(chan []bucket.Ref, 1), secrets: make(chan secret, 1),
		looked: make(chan []bucket.Ref, slots), done: make(chan done, slots),
	}
	for _, w := range []*rate.Sometimes{
		&l.warnings.lost, &l.warnings.refused, &l.warnings.store, &l.warnings.overflow, &l.warnings.session,
	} {
		w.Interval = 10 * time.Second
	}
	l.loop.queue = newQueue()
	l.loop.busy = map[bucket.Ref]bool{}
	l.loop.out = map[int]int{}
	l.loop.pauses = map[int]time.Time{}
	l.loop.held = map[bucket.Ref]struct{}{}
	l.mu.announced = map[bucket.Ref]struct{}{}
	l.mu.contacts = map[int]contact{}
	l.mu.epochs = map[int]string{}
	l.mu.shards = policy.DefaultShards
	l.mu.times = policy.DefaultTimes()
	return l
}

// SetRegions tells the lessee the regions document: how many shards there are and the protocol's times.
func (l *Lessee) SetRegions(r *policy.Regions) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.shards, l.mu.times = r.Shards, r.Times
}

// Shards is how many shards the region's buckets are spread over.
func (l *Lessee) Shards() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.shards
}

// RoundTrip is the measured round trip to the allocator, smoothed; 0 before the first heartbeat was answered.
func (l *Lessee) RoundTrip() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.roundTrip
}

// Secret says whether the region's gateways agree on one hash secret, nil if they do or none has registered yet.
func (l *Lessee) Secret() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.secret.problem()
}

// Run keeps the region's leases until ctx ends, then settles and returns all of them, and returns when that is done or took
// too long.
func (l *Lessee) Run(ctx context.Context) error {
	// What runs beside the loop outlives ctx by the drain.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer l.beside.Wait()
	defer stop()
	listen, deaf := context.WithCancel(work)
	defer deaf()
	l.beside.Go(func() { l.listen(listen) })
	l.beside.Go(func() { l.beat(work) })

	l.loop.flush = time.NewTimer(coalesce)
	l.loop.check = time.NewTimer(0)
	due, tick := time.NewTicker(dueEvery), time.NewTicker(tickEvery)
	defer due.Stop()
	defer tick.Stop()
	ended := ctx.Done()
	for !l.drainedAll() {
		select {
		case <-ended:
			ended = nil
			deaf()
			l.drain()
		case <-l.loop.drained:
			l.abandonDrain()
			return nil
		case <-l.heard:
			l.collect()
		case <-l.loop.flush.C:
			l.flush(work)
		case now := <-tick.C:
			l.wake(work, now)
		case <-due.C:
			l.poll(work)
		case refs := <-l.dues:
			l.loop.polling = false
			l.enqueue(refs)
		case refs := <-l.looked:
			l.release(refs)
		case d := <-l.done:
			l.settle(d)
			l.flush(work)
		case <-l.loop.check.C:
			l.checkSecret(work)
		case s := <-l.secrets:
			l.learn(s)
		}
	}
	return nil
}

// listen hears the store's announcements until ctx ends. One that is lost costs a retry.
func (l *Lessee) listen(ctx context.Context) {
	for ctx.Err() == nil {
		err := l.store.Demands(ctx, l.hear)
		if ctx.Err() != nil {
			return
		}
		l.count(ctx, kindDeaf, 1)
		l.warnings.store.Do(func() {
			l.tel.Log.Warn("the region's Redis announces no demand to this agent; it tries again", "error", err)
		})
		pause(ctx, backOff())
	}
}

// hear notes an announcement; the loop collects it.
func (l *Lessee) hear(a bucket.Announcement) {
	l.mu.Lock()
	known := a.Shard >= 0 && a.Shard < l.mu.shards && a.Shard == a.Key.Shard(l.mu.shards)
	_, again := l.mu.announced[a.Ref]
	room := again || len(l.mu.announced) < mostPending
	if known && room {
		l.mu.announced[a.Ref] = struct{}{} // its trace context is in the bucket's record too
	}
	l.mu.Unlock()
	switch {
	case !known:
		l.count(context.Background(), kindUnknown, 1)
	case !room:
		l.count(context.Background(), kindDropped, 1)
	}
	select {
	case l.heard <- struct{}{}:
	default: // the loop knows that there is something
	}
}
