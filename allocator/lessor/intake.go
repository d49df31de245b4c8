package lessor

import (
	"context"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/telemetry"
)

const (
	// queueEnvelopes and queueItems bound what waits for one shard's loop, about 4 MB; what comes beyond is answered busy.
	queueEnvelopes = 1024
	queueItems     = 32 * lease.MaxItems
)

// message is what arrived, whoever carried it.
type message struct {
	subject string
	header  nats.Header
	data    []byte
	respond func([]byte) error
}

// envelope is one that passed every check that needs no ledger.
type envelope struct {
	*leasepb.Envelope
	ctx     context.Context //nolint:containedctx // it is the message's trace, which travels with it through the queue
	span    trace.Span      // nil where nobody records it
	respond func([]byte) error
	reply   *leasepb.Reply // decided, not yet sent
}

// receive decodes and checks a message and puts it into the queue, or refuses it with a sentence. It never blocks. It runs in
// the subscription's goroutine, so that decoding does not hold the loop up.
func (s *shard) receive(m message) {
	pb, err := lease.DecodeEnvelope(m.data, m.subject)
	if err == nil {
		err = s.check(pb)
	}
	if err != nil {
		s.refuse(m, err.Error())
		return
	}
	s.lessor.heard.envelope(pb, s.lessor.cfg.Now())
	if s.queued.Add(int64(len(pb.GetItems()))) > queueItems {
		s.queued.Add(-int64(len(pb.GetItems())))
		s.refuse(m, busy)
		return
	}
	env := s.traced(&envelope{Envelope: pb, ctx: context.Background(), respond: m.respond}, m.header)
	select {
	case s.queue <- env:
	default:
		s.queued.Add(-int64(len(pb.GetItems())))
		env.end(busy)
		s.refuse(m, busy)
	}
}

// busy is the sentence for a queue that is full.
const busy = "busy: this shard's queue is full; ask again"

// check returns why a well-formed envelope is refused as a whole, nil if it is not.
func (s *shard) check(env *leasepb.Envelope) error {
	if env.GetShard() != uint32(s.number) {
		return fmt.Errorf("shard %d is not served here, but %d; compare the regions documents' shards", env.GetShard(), s.number)
	}
	_, regions := s.lessor.cfg.Documents()
	if regions == nil {
		return errNoRegions
	}
	if _, known := regions.Weights()[env.GetRegion()]; !known {
		return fmt.Errorf("region %s is not in the regions document; add it first", env.GetRegion())
	}
	// An agent that has met no gateway yet knows no fingerprint: it may say that it is there, but ask for nothing.
	greets := env.GetFingerprint() == "" && len(env.GetItems()) == 0
	if !greets && env.GetFingerprint() != s.lessor.cfg.Fingerprint {
		s.lessor.wrongSecret(env)
		return fmt.Errorf("region %s hashes keys with another secret; give every role the same hash_secret_file", env.GetRegion())
	}
	for _, item := range env.GetItems() {
		if key := lease.KeyOf(item); key.Shard(len(s.lessor.shards)) != s.number {
			// Decided here, it would have a second pool beside the one of its own shard.
			return fmt.Errorf("a key of shard %d came to shard %d; compare the regions documents' shards",
				key.Shard(len(s.lessor.shards)), s.number)
		}
	}
	return nil
}

// wrongSecret shouts: two secrets would double every limit.
func (l *Lessor) wrongSecret(env *leasepb.Envelope) {
	l.heard.wrongSecret(env.GetRegion(), l.cfg.Now())
	l.shout.Do(func() {
		l.cfg.Telemetry.Log.Error("a region hashes keys with another secret, so it gets no leases; give every role the same hash_secret_file",
			"region", env.GetRegion(), "agent", env.GetAgent(),
			"fingerprint", env.GetFingerprint(), "want", l.cfg.Fingerprint)
	})
}

// refuse answers that nothing in the envelope was looked at, and why.
func (s *shard) refuse(m message, why string) {
	why = strings.ToValidUTF8(why[:min(len(why), lease.MaxReason)], "")
	data, err := lease.EncodeReply(&leasepb.Reply{Proto: lease.Proto, Refused: why}, nil)
	if err == nil {
		err = m.respond(data)
	}
	if err != nil {
		s.log.Debug("a refusal could not be sent", "error", err)
	}
}

// traced gives env a span if the agent's is sampled. It begins here, so that the time in the queue shows.
func (s *shard) traced(env *envelope, header nats.Header) *envelope {
	ctx := telemetry.Extract(env.ctx, header)
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return env
	}
	env.ctx, env.span = s.lessor.cfg.Telemetry.Tracer.Start(ctx, "lease decide", //nolint:spancheck // env.end ends it
		trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(
			attribute.String("region", env.GetRegion()),
			attribute.Int("shard", s.number),
			attribute.Int("items", len(env.GetItems()))))
	return env
}
