package bucket

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
)

// Views reads the buckets that refs name, in order. On an error those that could be read have a Ref, the others are zero.
func (s *Store) Views(ctx context.Context, refs []Ref) ([]View, error) {
	calls := make([]*call, len(refs))
	for i, ref := range refs {
		if err := ref.check(); err != nil {
			return nil, couldNotAsk("view", err)
		}
		calls[i] = &call{shards: []int{ref.Shard}, keys: []string{shardKey(ref.Shard), recordKey(ref)}, args: make([]any, 1)}
	}
	views := make([]View, len(refs))
	err := s.each(ctx, viewScript, calls, func(i int, reply []any) (err error) {
		views[i], err = parseView(refs[i], reply)
		return err
	})
	return views, err
}

// Ask makes the item of each plan, if its bucket is still as the plan saw it (epoch, session, seq); nil stands for one that
// moved on. The item's seq is in flight from then until its deadline. On an error, items that are not nil were made.
func (s *Store) Ask(ctx context.Context, plans []Plan) ([]*Asked, error) {
	calls := make([]*call, len(plans))
	for i, p := range plans {
		if err := p.check(); err != nil {
			return nil, couldNotAsk("ask", err)
		}
		ref := p.View.Ref
		calls[i] = &call{
			shards: []int{ref.Shard},
			keys:   []string{shardKey(ref.Shard), recordKey(ref), scheduleKey(ref.Shard)},
			args: []any{nil, ref.Key.String(), p.View.Epoch, p.View.Session, p.View.Seq, int64(p.Return), int64(p.Demand),
				bit(p.NewSession), p.Deadline.Microseconds()},
		}
	}
	asked := make([]*Asked, len(plans))
	err := s.each(ctx, askScript, calls, func(i int, reply []any) (err error) {
		asked[i], err = parseAsked(plans[i], reply)
		return err
	})
	return asked, err
}

// Fill applies answers and announces them to waiting gateways; false stands for one that named another epoch, session or seq
// than the bucket's, or was applied before, which changed nothing. On an error, answers that have true were applied.
func (s *Store) Fill(ctx context.Context, grants []Grant) ([]bool, error) {
	calls := make([]*call, len(grants))
	for i, g := range grants {
		if err := g.check(); err != nil {
			return nil, couldNotAsk("fill", err)
		}
		calls[i] = &call{
			shards: []int{g.Shard},
			keys:   []string{shardKey(g.Shard), recordKey(g.Ref), scheduleKey(g.Shard)},
			args: []any{nil, g.Key.String(), g.Epoch, g.Session, g.Seq, int64(g.Granted), g.TTL.Microseconds(),
				g.DryFor.Microseconds(), int64(g.PoolLevel), g.FitsIn.Microseconds()},
		}
	}
	applied := make([]bool, len(grants))
	err := s.each(ctx, fillScript, calls, func(i int, reply []any) error {
		first, err := status(reply)
		applied[i] = first == 1
		return err
	})
	return applied, err
}

// each runs calls and reads every reply with parse; the first error of all is returned, after the others were read.
func (s *Store) each(ctx context.Context, sc *script, calls []*call, parse func(i int, reply []any) error) error {
	if len(calls) == 0 {
		return nil
	}
	ctx, cancel := s.patient(ctx)
	defer cancel()
	s.runAll(ctx, sc, calls)
	var first error
	for i, c := range calls {
		err := c.err
		if err == nil {
			err = parse(i, c.reply)
		}
		if first == nil && err != nil {
			first = couldNotAsk(sc.name, err)
		}
	}
	return first
}

// parseView reads view's reply.
func parseView(ref Ref, reply []any) (View, error) {
	const unknown, found = 3, 29
	first, err := status(reply)
	if err != nil || (first == 0 && len(reply) != unknown) || (first == 1 && len(reply) != found) || first < 0 || first > 1 {
		return View{}, errReply
	}
	f := fields{reply[1:]}
	v := View{Ref: ref, Found: first == 1, Epoch: f.text(), Now: limit.Micros(f.integer())}
	if !v.Found {
		return v, nil
	}
	v.Policy, v.Variant = f.text(), f.text()
	revision, err := strconv.ParseUint(f.text(), 10, 64)
	v.Revision = revision
	v.Sealed, v.Traceparent = []byte(f.text()), f.text()
	v.Session, v.Seq, v.Applied = uint64(f.integer()), uint64(f.integer()), uint64(f.integer())
	v.InFlight = f.integer() == 1
	for _, n := range []*limit.Tokens{&v.Left, &v.Spent, &v.Returned, &v.Lapsed, &v.Denied, &v.Waiting, &v.Cost} {
		*n = limit.Tokens(f.integer())
	}
	for _, n := range []*limit.Micros{&v.ExpiresAt, &v.LastSpentAt, &v.DryUntil, &v.AskedAt} {
		*n = limit.Micros(f.integer())
	}
	v.AskedSpent, v.AskedDenied = limit.Tokens(f.integer()), limit.Tokens(f.integer())
	v.AskedDemand = limit.Micro(f.integer())
	for _, n := range []*limit.Tokens{&v.AnsweredSpent, &v.AnsweredReturned, &v.AnsweredLapsed} {
		*n = limit.Tokens(f.integer())
	}
	if err != nil || f.values == nil {
		return View{}, errReply
	}
	return v, nil
}

// parseAsked reads ask's reply; nil where the bucket moved on.
func parseAsked(p Plan, reply []any) (*Asked, error) {
	const made = 15
	first, err := status(reply)
	if err == nil && first == 0 {
		return nil, nil //nolint:nilnil // Ask's contract: nil stands for a bucket that moved on
	}
	if err != nil || first != 1 || len(reply) != made {
		return nil, errReply
	}
	f := fields{reply[1:]}
	item := &leasepb.Item{
		Key: p.View.Key[:], Want: int64(p.Want), Waiting: int64(p.Waiting), Demand: int64(p.Demand.Up()), Draining: p.Draining,
		Policy: f.text(), Variant: f.text(),
	}
	item.Revision, err = strconv.ParseUint(f.text(), 10, 64)
	item.Sealed, item.Traceparent = []byte(f.text()), f.text()
	item.Session, item.Seq, item.Applied = uint64(f.integer()), uint64(f.integer()), uint64(f.integer())
	item.Spent, item.Returned, item.Lapsed, item.Denied = f.integer(), f.integer(), f.integer(), f.integer()
	item.Left, item.Cost = f.integer(), f.integer()
	if err != nil || f.values == nil {
		return nil, errReply
	}
	return &Asked{Ref: p.View.Ref, Epoch: p.View.Epoch, Item: item}, nil
}

func (p Plan) check() error {
	if err := p.View.check(); err != nil {
		return err
	}
	for _, n := range []limit.Tokens{p.Want, p.Waiting, p.Return} {
		if n < 0 || n > limit.MaxTokens {
			return fmt.Errorf("plan of %d tokens; give 0 to %d", n, limit.MaxTokens)
		}
	}
	switch {
	case p.Demand < 0 || p.Demand > maxNumber:
		return fmt.Errorf("demand of %d micro-tokens is out of range", p.Demand)
	case p.View.Session > maxNumber || p.View.Seq > maxNumber || len(p.View.Epoch) > maxName:
		return errors.New("session, seq or epoch out of range")
	case p.Deadline <= 0 || limit.Micros(p.Deadline.Microseconds()) > maxDuration:
		return fmt.Errorf("deadline of %s; give more than 0, at most 24h", p.Deadline)
	}
	return nil
}

func (g Grant) check() error {
	if err := g.Ref.check(); err != nil {
		return err
	}
	switch {
	case g.Granted < 0 || g.Granted > limit.MaxTokens || g.PoolLevel < -limit.MaxTokens || g.PoolLevel > limit.MaxTokens:
		return fmt.Errorf("grant of %d tokens from a pool at %d; both are at most %d", g.Granted, g.PoolLevel, limit.MaxTokens)
	case g.Session > maxNumber || g.Seq > maxNumber || len(g.Epoch) > maxName:
		return errors.New("session, seq or epoch out of range")
	}
	for name, d := range map[string]time.Duration{"ttl": g.TTL, "dry for": g.DryFor} {
		if d < 0 || limit.Micros(d.Microseconds()) > maxDuration {
			return fmt.Errorf("%s %s; give 0 to 24h", name, d)
		}
	}
	if g.FitsIn < 0 || limit.Micros(g.FitsIn.Microseconds()) > limit.Never {
		return fmt.Errorf("fits in %s; give 0 or more", g.FitsIn)
	}
	return nil
}
