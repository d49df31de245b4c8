package bucket

import (
	"context"
	"fmt"
)

// Vouch begins the first epoch of every shard as one that knows all its buckets: an unknown one is full at once, and not only
// once it could have refilled. It is for whoever knows that nothing was ever spent: the store is new, and so is the journal.
// A shard that has an epoch already keeps it.
func (s *Store) Vouch(ctx context.Context, shards int) error {
	calls := make([]*call, shards)
	for shard := range calls {
		calls[shard] = epochCall(shard, refusal{reason: "vouched"})
	}
	ctx, cancel := s.patient(ctx)
	defer cancel()
	s.runAll(ctx, epochScript, calls)
	for shard, c := range calls {
		if _, err := status(c.reply); c.err != nil || err != nil {
			return couldNotAsk(fmt.Sprintf("vouch for shard %d", shard), cmpErr(c.err, err))
		}
	}
	return nil
}
