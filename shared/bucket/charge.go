package bucket

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

const (
	// maxKeys is how many keys one script may touch.
	maxKeys = 2 * MaxCharges
	// maxDenials bounds the numbers of a ban.
	maxDenials = 1_000_000
	// maxBan bounds the times of a ban.
	maxBan = 366 * 24 * time.Hour
	// outsideWindows is take's reply where the windows that it was given are not those of the store's clock.
	outsideWindows = -3
)

// now is the store's clock, as far as its replies have told; at first our own. Nothing is decided by it: a script that finds
// itself outside the windows that were worked out with it says so.
func (s *Store) now() time.Time {
	return time.Now().Add(time.Duration(s.ahead.Load()) * time.Microsecond)
}

// outside tells whether reply says that the store's clock is in other windows, and then notes that clock.
func (s *Store) outside(reply []any) bool {
	f := fields{reply}
	if len(reply) != 2 || f.integer() != outsideWindows {
		return false
	}
	if now := f.integer(); f.values != nil {
		s.ahead.Store(now - time.Now().UnixMicro())
	}
	return true
}

// plain is true of a token bucket without delay and ban.
func (c Charge) plain() bool {
	return c.Algorithm == limit.TokenBucket && c.MaxDelay == 0 && c.Ban == (Ban{})
}

// special is what lua/special.lua reads; "" for a plain token bucket. A fixed window comes with the one before and the one
// after, so that clocks may differ by as much.
func (c Charge) special(now time.Time) string {
	if c.plain() {
		return ""
	}
	var before, start, next, after int64
	if c.Algorithm == limit.FixedWindow {
		at, end := c.Window.Start(now), c.Window.Next(now)
		before, start = c.Window.Start(at.Add(-time.Microsecond)).UnixMicro(), at.UnixMicro()
		next, after = end.UnixMicro(), c.Window.Next(end).UnixMicro()
	}
	text := make([]byte, 0, 128)
	for _, n := range []int64{
		int64(c.Algorithm), c.MaxDelay.Microseconds(), before, start, next, after,
		int64(c.Ban.Denials), c.Ban.Within.Microseconds(), c.Ban.For.Microseconds(), int64(c.Denials),
	} {
		text = append(strconv.AppendInt(text, n, 10), ' ')
	}
	return string(append(text, c.rule()...))
}

// rule names what a record counts: where it is another, the record begins as after a loss. It begins with the time after
// which a record that nobody writes is as one that is not there, in µs.
func (c Charge) rule() string {
	switch c.Algorithm {
	case limit.TokenBucket:
		return ""
	case limit.Concurrency:
		return strconv.FormatInt(HolderLasts.Microseconds(), 10) + " " + c.Algorithm.String()
	default:
		return strconv.FormatInt(int64(c.Window.Longest()), 10) + " " + c.Algorithm.String() + " " + c.Window.String()
	}
}

// moreKeys are the keys that c needs beside its record, in the order of lua/special.lua.
func (c Charge) moreKeys() (keys []string) {
	if c.Algorithm == limit.SlidingWindowLog || c.Algorithm == limit.Concurrency {
		keys = append(keys, entriesKey(c.Ref))
	}
	if c.Algorithm == limit.Concurrency {
		keys = append(keys, holdersKey(c.Shard))
	}
	if c.Ban != (Ban{}) {
		keys = append(keys, bansKey(c.Shard))
	}
	return keys
}

// checkKeys bounds what one script touches.
func (r Request) checkKeys() error {
	shards := map[int]bool{}
	keys := len(r.Charges)
	for _, c := range r.Charges {
		shards[c.Shard] = true
		keys += len(c.moreKeys())
	}
	if keys += len(shards); keys > maxKeys {
		return fmt.Errorf("%d policies need %d keys in one take, of at most %d; let fewer logs, slots and bans match one request",
			len(r.Charges), keys, maxKeys)
	}
	return nil
}

func (c Charge) checkAlgorithm(holder Holder) error {
	counts := c.Algorithm != limit.TokenBucket
	switch {
	case c.Algorithm > limit.Concurrency:
		return fmt.Errorf("algorithm %d; give one of limit.Algorithms", c.Algorithm)
	case c.Leased && !c.plain():
		return fmt.Errorf("%s with a pool, a delay or a ban: only a plain token bucket is of scope global", c.Algorithm)
	case counts && (c.Part.Rate != 0 || c.MaxDelay != 0):
		return fmt.Errorf("%s has neither rate nor delay", c.Algorithm)
	case c.Algorithm.Windowed() == c.Window.IsZero():
		return fmt.Errorf("%s with the window %s; windows, and only they, need one", c.Algorithm, c.Window)
	case c.Algorithm.Windowed() && c.Algorithm != limit.FixedWindow && c.Window.Unit() != limit.Fixed:
		return fmt.Errorf("%s with the window %s; give a fixed length", c.Algorithm, c.Window)
	case c.MaxDelay < 0 || c.MaxDelay > 24*time.Hour:
		return fmt.Errorf("delay %s; give 0 to 24h", c.MaxDelay)
	case c.Algorithm == limit.Concurrency && (holder == 0 || holder >= maxHolder):
		return errors.New("concurrency without a holder; make one with NewHolder and Hold")
	}
	return c.Ban.check(c.Denials)
}

func (b Ban) check(denials int) error {
	switch {
	case denials < 0 || denials > maxDenials:
		return fmt.Errorf("%d denials from memory; give 0 to %d", denials, maxDenials)
	case b == (Ban{}):
		return nil
	case b.Denials < 1 || b.Denials > maxDenials || b.Within < time.Millisecond || b.Within > maxBan || b.For < time.Millisecond || b.For > maxBan:
		return fmt.Errorf("ban of %d denials within %s for %s; give 1 to %d, and 1ms to %s", b.Denials, b.Within, b.For, maxDenials, maxBan)
	}
	return nil
}
