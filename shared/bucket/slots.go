package bucket

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

const (
	// HolderLasts is how long a holder's slots are held after its last renewal (PROTOCOL.md B8). A process ends the requests
	// that hold slots once so much has passed, by its own clock, since it sent the last renewal that succeeded.
	HolderLasts = 10 * time.Second
	// RenewEvery is how often a holder is renewed.
	RenewEvery = time.Second

	maxHolder = 1 << 52
)

// Holder is one registration of one process, by which its slots are held: as long as the holder is renewed. It is a random
// number below 2⁵², so no two processes have the same; 0 is none.
type Holder uint64

// NewHolder returns a holder that nobody else has. Hold makes it known.
func NewHolder() Holder {
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
	return Holder(binary.BigEndian.Uint64(raw[:])%(maxHolder-1) + 1)
}

// Hold makes h known in every shard; before that, and once it is gone, takes that name it are ErrHolderGone. A holder that is gone
// somewhere is never held again: make another.
func (s *Store) Hold(ctx context.Context, h Holder, shards int) error {
	_, err := s.renew(ctx, h, shards, true)
	return err
}

// Renew keeps h's slots, and is called every RenewEvery. It returns the shards where h is gone: nobody renewed it there for
// HolderLasts, or the store has lost it. Its requests that hold slots there must end, for others may have their slots by now. On an
// error nothing is known of the shards that are not returned: a process that cannot renew for HolderLasts ends them all.
func (s *Store) Renew(ctx context.Context, h Holder, shards int) (gone []int, err error) {
	return s.renew(ctx, h, shards, false)
}

func (s *Store) renew(ctx context.Context, h Holder, shards int, begins bool) (gone []int, err error) {
	if h == 0 || h >= maxHolder || shards < 1 || shards > MaxShards {
		return nil, couldNotAsk("renew", fmt.Errorf("holder %d of %d shards; give one of NewHolder, and 1 to %d shards", h, shards, MaxShards))
	}
	calls := make([]*call, shards)
	for shard := range calls {
		calls[shard] = &call{
			shards: []int{shard}, keys: []string{shardKey(shard), holdersKey(shard)}, args: []any{nil, uint64(h), bit(begins)},
		}
	}
	err = s.each(ctx, renewScript, calls, func(shard int, reply []any) error {
		switch first, problem := status(reply); {
		case problem != nil:
			return problem
		case first == 2:
			return errors.New("there are 1024 holders already; end processes that are not needed")
		case first == 0:
			gone = append(gone, shard)
		}
		return nil
	})
	return gone, err
}
