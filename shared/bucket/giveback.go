package bucket

import (
	"context"
	"errors"
	"fmt"

	"github.com/annona-gateway/annona/shared/limit"
)

// GiveBack returns tokens of earlier takes: what a request turned out not to cost, or what one shard charged before another
// denied or failed (PROTOCOL.md E5). Each is credited as far as all that its receipt names still holds, and never more than
// surely fits. After an error nobody knows what was credited: whoever gave back because of a denial must then refuse and not
// deny, and may not give the same receipt back again.
func (s *Store) GiveBack(ctx context.Context, backs []Back) ([]Credited, error) {
	script := giveBackScript
	calls := make([]*call, len(backs))
	for i, b := range backs {
		if err := b.check(); err != nil {
			return nil, couldNotAsk("giveback", err)
		}
		if b.Algorithm != limit.TokenBucket {
			script = giveAnyScript
		}
		calls[i] = &call{
			shards: []int{b.Shard}, keys: []string{shardKey(b.Shard), recordKey(b.Ref), entriesKey(b.Ref)},
			args: []any{nil, b.Epoch, b.Session, b.Lease, int64(b.FromLease), int64(b.At), int64(b.Until), int64(b.Tokens),
				int64(b.FromPart), int64(b.Turn), int(b.Algorithm), int64(b.Window), b.Entry, uint64(b.Holder)},
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	credited := make([]Credited, len(backs))
	err := s.each(ctx, script, calls, func(i int, reply []any) error {
		const values = 4
		f := fields{reply}
		if len(reply) != values || f.integer() != 1 {
			return errReply
		}
		credited[i] = Credited{Lease: limit.Tokens(f.integer()), Part: limit.Micro(f.integer()), Count: limit.Tokens(f.integer())}
		if f.values == nil {
			return errReply
		}
		return nil
	})
	return credited, err
}

func (b Back) check() error {
	if err := b.Ref.check(); err != nil {
		return err
	}
	for _, n := range []limit.Tokens{b.FromLease, b.FromPart, b.Tokens} {
		if most := max(limit.MaxTokens, b.Algorithm.MaxN()); n < 0 || n > most {
			return fmt.Errorf("give back of %d tokens; give 0 to %d", n, most)
		}
	}
	switch {
	case b.Tokens > b.FromLease+b.FromPart:
		return fmt.Errorf("give back of %d tokens of %d that were taken", b.Tokens, b.FromLease+b.FromPart)
	case b.Epoch == "" || len(b.Epoch) > maxName || b.Session > maxNumber || b.Lease > maxNumber:
		return errors.New("epoch, session or lease is none that a take returned")
	case b.Algorithm > limit.Concurrency || b.Entry > maxNumber || b.Holder >= maxHolder:
		return errors.New("algorithm, entry or holder is none that a take returned")
	case b.Algorithm == limit.Concurrency && b.Tokens != b.FromPart:
		return fmt.Errorf("give back of %d of a request's %d slots; they are given back whole, when it has ended", b.Tokens, b.FromPart)
	case b.At < 0 || b.At > maxNumber || b.Until < 0 || b.Until > maxNumber || b.Window < 0 || b.Window > maxNumber || b.Turn < 0 || b.Turn > maxNumber:
		return errors.New("instants out of range; give those of the receipt")
	}
	return nil
}

// Correct makes each charge cost what it turned out to: less is given back (PROTOCOL.md E5), more is charged at the present
// moment, as a debt where there is not as much. Slots are not corrected. After an error nobody knows what was corrected.
func (s *Store) Correct(ctx context.Context, corrections []Correction) error {
	var backs []Back
	var debts []Charge
	for _, c := range corrections {
		taken := c.Receipt.FromLease + c.Receipt.FromPart
		switch {
		case c.Charge.Ref != c.Receipt.Ref || c.Charge.Algorithm != c.Receipt.Algorithm || c.Charge.Algorithm == limit.Concurrency:
			return couldNotAsk("correct", errors.New("charge and receipt are of two takes, or of slots"))
		case c.Actual < 0 || c.Actual > max(limit.MaxTokens, c.Charge.Algorithm.MaxN()):
			return couldNotAsk("correct", fmt.Errorf("actual cost %d; give 0 to %d", c.Actual, max(limit.MaxTokens, c.Charge.Algorithm.MaxN())))
		case c.Actual <= taken:
			backs = append(backs, Back{Receipt: c.Receipt, Tokens: taken - c.Actual})
		default:
			backs = append(backs, Back{Receipt: c.Receipt}) // nothing of it comes back any more
			c.Charge.Cost, c.Charge.Denied, c.Charge.Denials, c.Charge.Waits = c.Actual-taken, 0, 0, 0
			debts = append(debts, c.Charge)
		}
	}
	if len(debts) > 0 {
		if _, err := s.Take(ctx, Request{Charges: debts, forced: true}); err != nil {
			return err
		}
	}
	if len(backs) == 0 {
		return nil
	}
	_, err := s.GiveBack(ctx, backs)
	return err
}
