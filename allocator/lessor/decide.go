package lessor

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/protobuf/proto"

	"github.com/annona-gateway/annona/allocator/ledger"
	"github.com/annona-gateway/annona/allocator/ledger/factpb"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// decide decides a batch, makes it durable and only then answers (F2). After an error nothing was answered.
func (s *shard) decide(batch []*envelope) error {
	t := tally{kinds: map[kindOf]int64{}, levels: map[string]limit.Tokens{}}
	err := s.commitBatch(batch, &t)
	if err != nil {
		for _, env := range batch {
			env.end(err.Error())
		}
		return err
	}
	for _, env := range batch {
		s.answer(env)
	}
	s.lessor.count(&t)
	return nil
}

// commitBatch decides a batch in memory and stores its facts, if there are any: a repeat has none.
func (s *shard) commitBatch(batch []*envelope, t *tally) error {
	n, err := s.current()
	if err != nil {
		return err
	}
	if err := s.beginEpoch(n, batch); err != nil {
		return err
	}
	var r records
	for _, env := range batch {
		env.reply = &leasepb.Reply{Proto: lease.Proto, Regions: n.reply}
		// One reading for all of an envelope's commands: they are decided in one go, within the margin of any reading.
		at := s.lessor.cfg.Now()
		for _, item := range env.GetItems() {
			answer, err := s.item(n, env, item, at, &r, t)
			if err != nil {
				return err
			}
			env.reply.Answers = append(env.reply.Answers, answer)
		}
	}
	return s.commit(batch, &r)
}

// item decides one item and makes it true in memory.
func (s *shard) item(
	n *numbers, env *envelope, item *leasepb.Item, at limit.Micros, r *records, t *tally,
) (*leasepb.Answer, error) {
	terms, refusal := n.termsFor(item)
	if refusal != leasepb.Refusal_REFUSAL_UNSPECIFIED {
		// A policy that is gone, or leases no more: what is out is settled and comes back, by the last numbers; nothing is granted.
		if pool, known := s.loop.books.Pool(at, item.GetPolicy(), lease.KeyOf(item)); known {
			item, refusal = windingUp(item, pool.Variant), leasepb.Refusal_REFUSAL_UNSPECIFIED
			terms.Pool = pool.Budget
		}
	}
	if refusal != leasepb.Refusal_REFUSAL_UNSPECIFIED {
		t.add("refused", env.GetRegion())
		return &leasepb.Answer{
			Key: item.GetKey(), Policy: item.GetPolicy(), Session: item.GetSession(), Seq: item.GetSeq(), Window: item.GetWindow(),
			Refusal: refusal,
		}, nil
	}
	facts, answer := s.loop.books.Decide(ledger.Command{
		At: at, Region: env.GetRegion(), Epoch: env.GetEpoch(), Item: item, Terms: terms,
	})
	t.item(env.GetRegion(), item, facts, answer)
	if len(facts) == 0 {
		return answer, nil
	}
	for _, fact := range facts {
		s.loop.books.Apply(fact)
		if decided := fact.GetDecided(); decided != nil {
			s.denials.note(env.GetRegion(), item, decided)
		}
	}
	if err := r.add(facts...); err != nil {
		return nil, fmt.Errorf("decide: %w", err)
	}
	return answer, nil
}

// windingUp is item as one of a bucket that drains.
func windingUp(item *leasepb.Item, variant string) *leasepb.Item {
	c := proto.CloneOf(item)
	c.Variant, c.Want, c.Waiting, c.Draining = variant, 0, 0, true
	return c
}

// answer sends what was decided for env, with the record that holds it. An answer that is lost is asked for again.
func (s *shard) answer(env *envelope) {
	s.loop.contact++
	env.reply.Term, env.reply.Sequence, env.reply.Contact = s.loop.term, s.loop.last, s.loop.contact
	data, err := lease.EncodeReply(env.reply, env.Envelope)
	if err != nil {
		s.log.ErrorContext(env.ctx, "an answer is not one that an agent would take; this is a bug", "region", env.GetRegion(), "error", err)
		env.end(err.Error())
		return
	}
	if err := env.respond(data); err != nil {
		s.log.DebugContext(env.ctx, "an answer could not be sent; its agent asks again", "region", env.GetRegion(), "error", err)
		env.end(err.Error())
		return
	}
	env.end("")
}

// kindOf counts items: what became of them, and whose they are.
type kindOf struct{ kind, region string }

// tally is what a batch adds to the metrics, once it is true.
type tally struct {
	kinds  map[kindOf]int64
	levels map[string]limit.Tokens // the lowest of each policy
}

func (t *tally) add(kind, region string) { t.kinds[kindOf{kind, region}]++ }

// item counts one that the ledger answered.
func (t *tally) item(region string, item *leasepb.Item, facts []*factpb.Fact, answer *leasepb.Answer) {
	switch {
	case answer.GetRefusal() != leasepb.Refusal_REFUSAL_UNSPECIFIED:
		t.add("refused", region)
		return
	case len(facts) == 0:
		t.add("repeated", region)
	case answer.GetGranted() > 0:
		t.add("granted", region)
	case item.GetWant() > 0:
		t.add("dry", region)
	default:
		t.add("settled", region)
	}
	level := limit.Tokens(max(answer.GetPoolLevel(), 0))
	if lowest, seen := t.levels[item.GetPolicy()]; !seen || level < lowest {
		t.levels[item.GetPolicy()] = level
	}
}

// count adds t to the metrics. Labels are names of the documents, so they are bounded.
func (l *Lessor) count(t *tally) {
	ctx, m := context.Background(), l.cfg.Telemetry.Metrics
	for k, n := range t.kinds {
		m.LeaseItems.Add(ctx, n, metric.WithAttributes(telemetry.LabelKind.String(k.kind), telemetry.LabelRegion.String(k.region)))
	}
	for policy, level := range t.levels {
		m.PoolLevel.Record(ctx, int64(level), metric.WithAttributes(telemetry.LabelPolicy.String(policy)))
	}
}

// countEpoch counts a journal epoch.
func (l *Lessor) countEpoch(ctx context.Context) {
	l.cfg.Telemetry.Metrics.EpochBegun.Add(ctx, 1, metric.WithAttributes(
		telemetry.LabelReason.String("journal"), telemetry.LabelRegion.String(""), attribute.String("role", "allocator")))
}
