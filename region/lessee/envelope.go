package lessee

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/telemetry"
)

const (
	// patience is how long one request waits for its reply before the same bytes are sent again.
	patience = time.Second
	// refusedAgain is when a whole envelope that was refused is sent again: its writer may be replaying.
	refusedAgain = 500 * time.Millisecond
	// mostLinks bounds the traces that one envelope's span points to.
	mostLinks = 16
)

// contact is what was last heard from a shard's writer; later envelopes echo it (F1).
type contact struct {
	term     string
	sequence uint64
	number   uint64
	at       time.Time
}

// newEnvelope makes an envelope about shard that echoes what its writer last said.
func (l *Lessee) newEnvelope(shard int, epoch, fingerprint string, asked []*bucket.Asked) *leasepb.Envelope {
	items := make([]*leasepb.Item, len(asked))
	for i, a := range asked {
		items[i] = a.Item
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.mu.contacts[shard]
	e := &leasepb.Envelope{
		Proto: lease.Proto, Region: l.cfg.Region, Epoch: epoch, Agent: l.cfg.Agent, Shard: uint32(shard),
		Fingerprint: fingerprint, Contact: c.number, Term: c.term, Sequence: c.sequence,
		PatienceUs: patience.Microseconds(), Items: items,
	}
	if !c.at.IsZero() {
		e.ContactAgeUs = min(time.Since(c.at).Microseconds(), int64(lease.MaxDuration))
	}
	return e
}

// heardFrom notes what a shard's writer said.
func (l *Lessee) heardFrom(shard int, r *leasepb.Reply) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := contact{term: r.GetTerm(), sequence: r.GetSequence(), number: r.GetContact(), at: time.Now()}
	if old := l.mu.contacts[shard]; old.term == c.term {
		c.sequence = max(c.sequence, old.sequence) // answers may overtake each other
		c.number = max(c.number, old.number)
	}
	l.mu.contacts[shard] = c
}

// envelope sends the items of one shard and epoch and applies what it is answered. It ends at the latest when the items'
// deadline does; then the store's schedule brings the buckets again.
func (l *Lessee) envelope(ctx context.Context, t *turn, d *done, epoch string, asked []*bucket.Asked) {
	ctx, span := l.span(ctx, t.begun, d.shard, asked)
	defer span.End()
	e := l.newEnvelope(d.shard, epoch, t.fingerprint, asked)
	reply, err := l.exchange(ctx, e, t.begun.Add(deadline))
	if err != nil {
		d.pause = backOff()
		span.SetStatus(codes.Error, err.Error())
		l.count(ctx, kindLost, len(asked))
		l.warnings.lost.Do(func() {
			l.tel.Log.WarnContext(ctx, "the allocator answered nothing; the region goes on with what it has and asks again",
				"shard", d.shard, "items", len(asked), "error", err)
		})
		return
	}
	l.apply(ctx, t, d, asked, reply)
}

// exchange sends e until it is answered, at the latest until the given time. Every attempt sends the same bytes, so that the
// allocator can know them for a repetition.
func (l *Lessee) exchange(ctx context.Context, e *leasepb.Envelope, until time.Time) (*leasepb.Reply, error) {
	data, err := lease.EncodeEnvelope(e)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	for {
		reply, wait, err := l.send(ctx, e, data)
		if err == nil {
			return reply, nil
		}
		if !pause(ctx, wait) {
			return nil, err
		}
	}
}

// send sends e once. With an error comes how long to wait before the next attempt.
func (l *Lessee) send(ctx context.Context, e *leasepb.Envelope, data []byte) (*leasepb.Reply, time.Duration, error) {
	attempt, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	shard := int(e.GetShard())
	msg := nats.NewMsg(lease.LeaseSubject(l.cfg.Region, shard))
	msg.Data = data
	telemetry.Inject(ctx, msg.Header)
	answer, err := l.bus.RequestMsgWithContext(attempt, msg)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, backOff(), fmt.Errorf("no allocator serves shard %d: %w", shard, err)
	case err != nil && attempt.Err() != nil:
		return nil, 0, fmt.Errorf("the allocator did not answer in time about shard %d: %w", shard, err)
	case err != nil:
		return nil, backOff(), fmt.Errorf("ask the allocator about shard %d: %w", shard, err)
	}
	reply, err := lease.DecodeReply(answer.Data, e)
	if err != nil {
		return nil, backOff(), fmt.Errorf("the allocator's answer about shard %d is of no use: %w", shard, err)
	}
	if reason := reply.GetRefused(); reason != "" {
		l.count(ctx, kindRefused, len(e.GetItems()))
		l.warnings.refused.Do(func() {
			l.tel.Log.WarnContext(ctx, "the allocator refused an envelope", "shard", shard, "items", len(e.GetItems()), "reason", reason)
		})
		return nil, refusedAgain, fmt.Errorf("the allocator refused: %s", reason)
	}
	l.heardFrom(shard, reply)
	return reply, 0, nil
}

// span begins the envelope's part of the traces that its items belong to: a child of the first, linked to the others.
// Without a sampled request there is nothing to trace.
func (l *Lessee) span(ctx context.Context, begun time.Time, shard int, asked []*bucket.Asked) (context.Context, trace.Span) {
	var parent string
	var links []trace.Link
	for _, a := range asked {
		text := a.Item.GetTraceparent()
		switch {
		case text == "":
		case parent == "":
			parent = text
		case len(links) < mostLinks:
			links = append(links, trace.LinkFromContext(telemetry.FromTraceparent(ctx, text)))
		}
	}
	if parent == "" {
		return ctx, trace.SpanFromContext(ctx)
	}
	return l.tel.Tracer.Start(telemetry.FromTraceparent(ctx, parent), "lease ask", //nolint:spancheck // its caller ends it
		trace.WithTimestamp(begun), trace.WithSpanKind(trace.SpanKindClient),
		trace.WithLinks(links...), trace.WithAttributes(
			attribute.String("annona.region", l.cfg.Region), attribute.Int("annona.shard", shard), attribute.Int("annona.items", len(asked))))
}

// beat sends an envelope without items to shard 0 every contact/4, by which the region counts as heard and the round trip is
// measured, until ctx ends.
func (l *Lessee) beat(ctx context.Context) {
	for ctx.Err() == nil {
		l.mu.Lock()
		every, epoch, fingerprint := l.mu.times.Contact/4, l.mu.epochs[0], l.mu.secret.fingerprint
		l.mu.Unlock()
		e := l.newEnvelope(0, epoch, fingerprint, nil)
		if data, err := lease.EncodeEnvelope(e); err == nil {
			sent := time.Now()
			if _, _, err := l.send(ctx, e, data); err == nil {
				l.measured(time.Since(sent))
			}
		}
		pause(ctx, every)
	}
}

// measured takes in one measured round trip, smoothed as TCP does (RFC 6298): a slow commit is no longer way.
func (l *Lessee) measured(sample time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.roundTrip == 0 {
		l.mu.roundTrip = sample
		return
	}
	l.mu.roundTrip += (sample - l.mu.roundTrip) / 8
}

// backOff is 100 to 250 ms, so that agents that were refused together do not come back together.
func backOff() time.Duration {
	return 100*time.Millisecond + rand.N(150*time.Millisecond) //nolint:gosec // spreading out needs no secret randomness
}

// pause waits, and is false if ctx ended.
func pause(ctx context.Context, wait time.Duration) bool {
	if wait <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
