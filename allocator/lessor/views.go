package lessor

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/annona-gateway/annona/allocator/ledger"
	"github.com/annona-gateway/annona/shared/limit"
)

// Snapshot is a pool at a reading of its writer's clock, on which its instants are.
type Snapshot struct {
	ledger.Pool
	Now limit.Micros
}

// ask runs look in the shard's loop, between two batches, so that it sees only what the journal has acknowledged. It returns
// an error where the shard does not serve, or not before ctx ends.
func (s *shard) ask(ctx context.Context, look func(books *ledger.Ledger, at limit.Micros)) error {
	if why := s.why(); why != "" {
		return fmt.Errorf("shard %d does not serve: %s", s.number, why)
	}
	done := make(chan struct{})
	a := func(books *ledger.Ledger, at limit.Micros) {
		defer close(done)
		look(books, at)
	}
	select {
	case s.asks <- a:
		// The loop has it and runs it at once.
		<-done
		return nil
	case <-ctx.Done():
		return fmt.Errorf("shard %d did not answer: %w", s.number, ctx.Err())
	}
}

// Pools returns the first most pools that filter accepts, by policy and key.
func (l *Lessor) Pools(ctx context.Context, filter func(ledger.Pool) bool, most int) ([]Snapshot, error) {
	var found []Snapshot
	for _, s := range l.shards {
		err := s.ask(ctx, func(books *ledger.Ledger, at limit.Micros) {
			kept := 0
			for _, pool := range books.Pools(at) {
				if kept == most {
					return
				}
				if filter(pool) {
					found = append(found, Snapshot{Pool: pool, Now: at})
					kept++
				}
			}
		})
		if err != nil {
			return nil, err
		}
		// Sorted and cut as we go, no more than two lists of most are ever held.
		slices.SortFunc(found, byPolicyAndKey)
		found = found[:min(len(found), most)]
	}
	return found, nil
}

func byPolicyAndKey(a, b Snapshot) int {
	return cmp.Or(cmp.Compare(a.Policy, b.Policy), bytes.Compare(a.Key[:], b.Key[:]))
}

// Pool returns one pool; ok is false where no region has asked for its tokens lately, so it is full.
func (l *Lessor) Pool(ctx context.Context, policy string, key limit.Key) (snapshot Snapshot, ok bool, err error) {
	err = l.shards[key.Shard(len(l.shards))].ask(ctx, func(books *ledger.Ledger, at limit.Micros) {
		snapshot.Pool, ok = books.Pool(at, policy, key)
		snapshot.Now = at
	})
	return snapshot, ok, err
}
