package bucket

import (
	"context"
	"fmt"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

// MaxBans is how many bans one shard lists; where there are more, those that end first are not listed, though they hold.
const MaxBans = 1000

// Ban bans a bucket's key after Denials denied requests within Within of the first of them, for For. It is part of the take: a
// request that finds a ban is charged nowhere.
type Ban struct {
	Denials     int           // 1 to 10^6
	Within, For time.Duration // 1 ms to 366 days
}

// BannedKey is one ban as an operator sees it.
type BannedKey struct {
	Ref
	Policy string
	Sealed []byte
	Left   time.Duration // how long it still lasts
}

// Bans lists bans by shard, from the shard of that number on, until at least most are listed, so most + MaxBans at most; within a
// shard those that end last come first. next is where to go on; 0: that was all.
func (s *Store) Bans(ctx context.Context, shards, from, most int) (list []BannedKey, next int, err error) {
	if shards < 1 || shards > MaxShards || from < 0 || from >= shards || most < 1 {
		return nil, 0, couldNotAsk("bans", fmt.Errorf("%d bans of %d shards from %d; give at least 1, 1 to %d, and one of them",
			most, shards, from, MaxShards))
	}
	for shard := from; shard < shards; shard++ {
		if len(list) >= most {
			return list, shard, nil
		}
		c := &call{shards: []int{shard}, keys: []string{shardKey(shard), bansKey(shard)}, args: make([]any, 1)}
		if err := s.single(ctx, bansScript, c); err != nil {
			return nil, 0, err
		}
		some, err := parseBans(shard, c.reply)
		if err != nil {
			return nil, 0, couldNotAsk("bans", err)
		}
		list = append(list, some...)
	}
	return list, 0, nil
}

func parseBans(shard int, reply []any) (list []BannedKey, err error) {
	const perBan = 4
	if first, err := status(reply); err != nil || first != 1 || len(reply)%perBan != 1 {
		return nil, errReply
	}
	for f := (fields{reply[1:]}); len(f.values) > 0; {
		b := BannedKey{Ref: Ref{Shard: shard}}
		b.Key, err = limit.ParseKey(f.text())
		b.Left = time.Duration(f.integer()) * time.Microsecond
		b.Policy, b.Sealed = f.text(), []byte(f.text())
		if err != nil || f.values == nil {
			return nil, errReply
		}
		list = append(list, b)
	}
	return list, nil
}

// Unban ends a key's ban; false where it had none.
func (s *Store) Unban(ctx context.Context, ref Ref) (bool, error) {
	if err := ref.check(); err != nil {
		return false, couldNotAsk("unban", err)
	}
	c := &call{
		shards: []int{ref.Shard}, keys: []string{shardKey(ref.Shard), recordKey(ref), bansKey(ref.Shard)},
		args: []any{nil, ref.Key.String()},
	}
	if err := s.single(ctx, unbanScript, c); err != nil {
		return false, err
	}
	first, err := status(c.reply)
	if err != nil {
		return false, couldNotAsk("unban", err)
	}
	return first == 1, nil
}
