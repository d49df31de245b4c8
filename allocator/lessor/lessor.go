// Package lessor serves the allocator's end of the lease protocol: it takes envelopes from NATS, has the shard's ledger decide
// them, stores the facts in the journal and only then answers.
//
// Each shard has one loop, the only goroutine that touches its ledger. The loop takes what has gathered in its queue, decides
// all of it in memory, appends the facts as one record (group commit) and answers when the record is acknowledged. Its only
// blocking call is that append, which is bounded; meanwhile the next batch gathers, and nobody can see the state that may
// yet prove untrue. If the append fails, whatever the reason, the loop answers nothing, throws its ledger away, replays the
// journal and begins a new term (PROTOCOL.md F2). Envelopes that got no answer come again with the same seq, and a seq gets
// the same answer however often it comes.
package lessor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/annona-gateway/annona/allocator/journal"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

const (
	// pendingEnvelopes and pendingBytes bound what waits in the connection for one shard's decoder; NATS drops what comes
	// beyond, and the agents ask again.
	pendingEnvelopes = 1024
	pendingBytes     = 16 << 20
	// subscribeTimeout bounds the wait until the server knows of a subscription.
	subscribeTimeout = 2 * time.Second
	// shoutEvery keeps a region with the wrong secret from filling the log.
	shoutEvery = 10 * time.Second
)

// Config is what a lessor needs.
type Config struct {
	Conn    *nats.Conn
	Journal journal.Journal
	// Shards is how many there are, fixed at the first start.
	Shards int
	// Fingerprint is that of this deployment's hash secret.
	Fingerprint string
	// Documents returns the policy and regions documents in force; either is nil until it was loaded. It is called often
	// and must be cheap: the same pointers as long as nothing changed.
	Documents func() (*policy.Document, *policy.Regions)
	// Now reads a clock that counts suspension; nil is the machine's time since boot.
	Now       func() limit.Micros
	Telemetry *telemetry.Telemetry
}

// Lessor serves every shard from one process.
type Lessor struct {
	cfg    Config
	shards []*shard
	heard  heard
	shout  rate.Sometimes

	// subscribe gives handle every message to a shard's writer until the returned function is called.
	subscribe func(shard int, handle func(message)) (stop func(), err error)
}

// New returns a lessor over cfg. It does nothing before Run.
func New(cfg Config) *Lessor {
	if cfg.Now == nil {
		cfg.Now = sinceBoot
	}
	l := &Lessor{cfg: cfg, shout: rate.Sometimes{First: 1, Interval: shoutEvery}}
	l.subscribe = l.subscribeNATS
	for number := range cfg.Shards {
		l.shards = append(l.shards, newShard(l, number))
	}
	return l
}

// Run serves until ctx ends: then every shard stops taking envelopes, finishes its batch and Run returns nil. It returns an
// error only where it can not go on, as when the connection was closed.
func (l *Lessor) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range l.shards {
		group.Go(func() error { return s.run(ctx) })
	}
	return group.Wait() //nolint:wrapcheck // it is a shard's, which says all
}

// Ready is nil once every shard has replayed its journal and serves; else it says what keeps how many from it.
func (l *Lessor) Ready() error {
	var first string
	waiting := 0
	for _, s := range l.shards {
		if why := s.why(); why != "" {
			waiting++
			first = cmp.Or(first, why)
		}
	}
	if waiting == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d shards do not serve: %s", waiting, len(l.shards), first)
}

// subscribeNATS has NATS deliver a shard's envelopes, one at a time.
func (l *Lessor) subscribeNATS(shard int, handle func(message)) (func(), error) {
	subscription, err := l.cfg.Conn.Subscribe(lease.WriterSubject(shard), func(m *nats.Msg) {
		handle(message{subject: m.Subject, header: m.Header, data: m.Data, respond: m.Respond})
	})
	if err != nil {
		return nil, fmt.Errorf("take the envelopes of shard %d: %w", shard, err)
	}
	if err := subscription.SetPendingLimits(pendingEnvelopes, pendingBytes); err != nil {
		return nil, fmt.Errorf("bound the envelopes of shard %d: %w", shard, err)
	}
	// Ready promises that envelopes arrive. While NATS is out they can not, and the subscription is made once it is back.
	if err := l.cfg.Conn.FlushTimeout(subscribeTimeout); err != nil && errors.Is(err, nats.ErrConnectionClosed) {
		return nil, fmt.Errorf("take the envelopes of shard %d: %w", shard, err)
	}
	return func() {
		// It fails where the connection is closed, and then nothing arrives either.
		_ = subscription.Unsubscribe()
	}, nil
}
