package bucket

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

const (
	// MaxBlocks bounds the blocks of a region, for every gateway keeps them all in memory.
	MaxBlocks = 10_000
	// MaxReason bounds a block's reason, in bytes.
	MaxReason = 256
	// MaxBlock is the longest that a block lasts, unless it lasts until it is removed.
	MaxBlock = maxBan
)

// Block is an identity that is refused everywhere in the region, whatever the policies say.
type Block struct {
	ID     limit.Key // the hashed identity
	Sealed []byte    // the identity, sealed, for operators
	Reason string
	Left   time.Duration // how long it still lasts, up to 366 days; 0: until it is removed
	Since  time.Duration // how long ago it was made, where it is read
}

// Block refuses an identity from now on, or changes its block. Gateways are told.
func (s *Store) Block(ctx context.Context, b Block) error {
	if len(b.Sealed) > maxSealed || len(b.Reason) > MaxReason || b.Left < 0 || b.Left > MaxBlock {
		return couldNotAsk("block", fmt.Errorf("a block lasts up to %s, with a reason of up to %d bytes", MaxBlock, MaxReason))
	}
	c := &call{
		keys: []string{blocksKey}, args: []any{nil, b.ID.String(), b.Left.Microseconds(), b.Sealed, b.Reason, MaxBlocks},
	}
	if err := s.single(ctx, blockScript, c); err != nil {
		return err
	}
	if first, err := status(c.reply); err != nil || first != 1 {
		return couldNotAsk("block", cmpErr(err, fmt.Errorf("there are %d blocks already; remove some", MaxBlocks)))
	}
	return nil
}

// Unblock removes a block; false where there is none. Gateways are told.
func (s *Store) Unblock(ctx context.Context, id limit.Key) (bool, error) {
	c := &call{keys: []string{blocksKey}, args: []any{nil, id.String()}}
	if err := s.single(ctx, unblockScript, c); err != nil {
		return false, err
	}
	first, err := status(c.reply)
	if err != nil {
		return false, couldNotAsk("unblock", err)
	}
	return first == 1, nil
}

// BlockChanges calls f after each change of the blocks until ctx ends. Announcements may be lost.
func (s *Store) BlockChanges(ctx context.Context, f func()) error {
	return s.listen(ctx, blocksChannel, func(string) { f() })
}

// Blocks lists the blocks, in no order, a few hundred at a time: no take behind it waits for long. One that changes meanwhile may
// be listed as it was.
func (s *Store) Blocks(ctx context.Context) ([]Block, error) {
	ctx, cancel := s.patient(ctx)
	defer cancel()
	routes, err := s.nodes.known(ctx)
	if err != nil {
		return nil, couldNotAsk("blocks", err)
	}
	client := s.nodes.link(routes.of(blocksKey)).client
	now, err := client.Time(ctx).Result()
	if err != nil {
		return nil, couldNotAsk("blocks", err)
	}
	const atOnce = 500
	found := map[limit.Key]Block{}
	for cursor := uint64(0); ; {
		var values []string
		values, cursor, err = client.HScan(ctx, blocksKey, cursor, "", atOnce).Result()
		if err != nil {
			return nil, couldNotAsk("blocks", err)
		}
		for i := 0; i+1 < len(values); i += 2 {
			b, ok, err := parseBlock(values[i], values[i+1], now.UnixMicro())
			if err != nil {
				return nil, couldNotAsk("blocks", err)
			}
			if ok {
				found[b.ID] = b
			}
		}
		if cursor == 0 {
			break
		}
	}
	list := make([]Block, 0, len(found))
	for _, b := range found {
		list = append(list, b)
	}
	return list, nil
}

// parseBlock reads one field of the blocks as it is at now, µs; ok is false where it has ended.
func parseBlock(id, value string, now int64) (b Block, ok bool, err error) {
	bad := errors.New("a block is stored in another form than expected; check that all roles run the same version")
	if b.ID, err = limit.ParseKey(id); err != nil {
		return b, false, bad
	}
	since, rest, _ := strings.Cut(value, " ")
	until, rest, _ := strings.Cut(rest, " ")
	length, rest, _ := strings.Cut(rest, ":")
	at, err1 := strconv.ParseInt(since, 10, 64)
	ends, err2 := strconv.ParseInt(until, 10, 64)
	size, err3 := strconv.Atoi(length)
	if cmpErr(err1, err2, err3) != nil || size < 0 || size >= len(rest) || rest[size] != ' ' {
		return b, false, bad
	}
	b.Sealed, b.Reason = []byte(rest[:size]), rest[size+1:]
	b.Since = time.Duration(max(0, now-at)) * time.Microsecond
	if ends == 0 {
		return b, true, nil
	}
	b.Left = time.Duration(ends-now) * time.Microsecond
	return b, ends > now, nil
}
