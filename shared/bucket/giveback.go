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
	calls := make([]*call, len(backs))
	for i, b := range backs {
		if err := b.check(); err != nil {
			return nil, couldNotAsk("giveback", err)
		}
		calls[i] = &call{
			shards: []int{b.Shard}, keys: []string{shardKey(b.Shard), recordKey(b.Ref)},
			args: []any{nil, b.Epoch, b.Session, b.Lease, int64(b.FromLease), int64(b.At), int64(b.Until), int64(b.Tokens),
				int64(b.FromPart)},
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	credited := make([]Credited, len(backs))
	err := s.each(ctx, giveBackScript, calls, func(i int, reply []any) error {
		const values = 3
		f := fields{reply}
		if len(reply) != values || f.integer() != 1 {
			return errReply
		}
		credited[i] = Credited{Lease: limit.Tokens(f.integer()), Part: limit.Micro(f.integer())}
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
		if n < 0 || n > limit.MaxTokens {
			return fmt.Errorf("give back of %d tokens; give 0 to %d", n, limit.MaxTokens)
		}
	}
	switch {
	case b.Tokens > b.FromLease+b.FromPart:
		return fmt.Errorf("give back of %d tokens of %d that were taken", b.Tokens, b.FromLease+b.FromPart)
	case b.Epoch == "" || len(b.Epoch) > maxName || b.Session > maxNumber || b.Lease > maxNumber:
		return errors.New("epoch, session or lease is none that a take returned")
	case b.At < 0 || b.At > maxNumber || b.Until < 0 || b.Until > maxNumber:
		return errors.New("instants out of range; give those of the receipt")
	}
	return nil
}
