package bucket

import (
	"context"
	"fmt"

	"github.com/annona-gateway/annona/shared/limit"
)

// MaxDue is how many buckets one call of Due may return.
const MaxDue = 10_000

// Due returns up to most buckets, over all shards, whose scheduled look has come: every shard's longest overdue first.
func (s *Store) Due(ctx context.Context, shards, most int) ([]Ref, error) {
	if shards < 1 || shards > MaxShards || most < 1 || most > MaxDue {
		return nil, couldNotAsk("due", fmt.Errorf("%d buckets of %d shards; give 1 to %d and 1 to %d", most, shards, MaxDue, MaxShards))
	}
	calls := make([]*call, shards)
	for shard := range calls {
		calls[shard] = &call{shards: []int{shard}, keys: []string{shardKey(shard), scheduleKey(shard)}, args: []any{nil, most}}
	}
	lists := make([][]Ref, shards)
	err := s.each(ctx, dueScript, calls, func(shard int, reply []any) (err error) {
		lists[shard], err = parseDue(shard, reply)
		return err
	})
	return inTurn(lists, most), err
}

// inTurn takes one of each list in turn, so that a shard with much due does not starve the others.
func inTurn(lists [][]Ref, most int) []Ref {
	var refs []Ref
	for turn := 0; ; turn++ {
		before := len(refs)
		for _, list := range lists {
			if turn < len(list) && len(refs) < most {
				refs = append(refs, list[turn])
			}
		}
		if len(refs) == before {
			return refs
		}
	}
}

func parseDue(shard int, reply []any) ([]Ref, error) {
	if first, err := status(reply); err != nil || first != 1 {
		return nil, errReply
	}
	var refs []Ref
	for _, value := range reply[1:] {
		hex, _ := value.(string)
		key, err := limit.ParseKey(hex)
		if err != nil {
			return nil, errReply
		}
		refs = append(refs, Ref{Shard: shard, Key: key})
	}
	return refs, nil
}

// Schedule sets when agents look at buckets again.
func (s *Store) Schedule(ctx context.Context, dues []Due) error {
	const most = 256 // buckets a call: a script that long runs below a millisecond
	open := map[int]*call{}
	var calls []*call
	for _, due := range dues {
		in := limit.Micros(due.In.Microseconds())
		if err := due.check(); err != nil {
			return couldNotAsk("schedule", err)
		}
		c := open[due.Shard]
		if c == nil || len(c.args) >= 1+2*most {
			c = &call{shards: []int{due.Shard}, keys: []string{shardKey(due.Shard), scheduleKey(due.Shard)}, args: make([]any, 1)}
			open[due.Shard] = c
			calls = append(calls, c)
		}
		if due.In < 0 {
			in = -1
		}
		c.args = append(c.args, due.Key.String(), int64(min(in, maxDuration)))
	}
	return s.each(ctx, scheduleScript, calls, func(_ int, reply []any) error {
		_, err := status(reply)
		return err
	})
}
