package lessor

import (
	"context"
	"fmt"
	"slices"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"github.com/annona-gateway/annona/allocator/journal"
	"github.com/annona-gateway/annona/allocator/ledger/factpb"
)

// records gathers facts, encoded, into as few records as the journal takes. Facts that belong together stay together.
type records struct {
	done [][]byte
	open []byte
}

// add encodes facts that must stand in one record. Encoded batches joined are the encoding of the joined batch, so each is
// encoded once.
func (r *records) add(facts ...*factpb.Fact) error {
	before := len(r.open)
	joined, err := proto.MarshalOptions{}.MarshalAppend(r.open, &factpb.Batch{Facts: facts})
	if err != nil {
		return fmt.Errorf("encode facts: %w", err)
	}
	r.open = joined
	if before > 0 && len(joined) > journal.MaxRecord {
		r.done = append(r.done, joined[:before:before])
		r.open = slices.Clone(joined[before:])
	}
	return nil
}

// all returns the records in order.
func (r *records) all() [][]byte {
	if len(r.open) == 0 {
		return r.done
	}
	return append(r.done, r.open)
}

// commit stores r and returns once it is durable. After any error nothing of it may be answered, and the ledger is void.
// Ending does not interrupt it: what was decided is either stored and answered, or neither.
func (s *shard) commit(batch []*envelope, r *records) error {
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	for _, record := range r.all() {
		spans := s.appendSpans(batch)
		number, err := s.lessor.cfg.Journal.Append(ctx, s.number, s.loop.last, record)
		endSpans(spans, err)
		if err != nil {
			return fmt.Errorf("append after record %d: %w", s.loop.last, err)
		}
		s.loop.last = number
		s.loop.terms.set(s.loop.term, number)
	}
	return nil
}

// appendSpans begins a span for the append in the trace of every envelope that is in the batch and recorded.
func (s *shard) appendSpans(batch []*envelope) []trace.Span {
	var spans []trace.Span
	for _, env := range batch {
		if env.span != nil {
			_, span := s.lessor.cfg.Telemetry.Tracer.Start(env.ctx, "journal append", trace.WithSpanKind(trace.SpanKindProducer))
			spans = append(spans, span)
		}
	}
	return spans
}

func endSpans(spans []trace.Span, err error) {
	for _, span := range spans {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// end ends env's span, if it has one; why is "" where it was answered.
func (env *envelope) end(why string) {
	if env.span == nil {
		return
	}
	if why != "" {
		env.span.SetStatus(codes.Error, why)
	}
	env.span.End()
}
