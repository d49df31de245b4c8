package bucket

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

// Bounds of what one call may carry. They keep a script short, and every number below 2⁵³.
const (
	maxName     = 256
	maxSealed   = 4096
	maxNumber   = 1 << 53
	maxDuration = limit.Micros(24 * 3600 * limit.MicrosPerSecond)
)

// Take charges all charges or none.
func (s *Store) Take(ctx context.Context, r Request) (Verdict, error) {
	if err := r.check(); err != nil {
		return Verdict{}, couldNotAsk("take", err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	script := takeScript
	if slices.ContainsFunc(r.Charges, func(c Charge) bool { return !c.plain() }) {
		script = takeAnyScript
	}
	for attempt := 1; ; attempt++ {
		c := takeCall(r, s.now())
		if err := s.run(ctx, script, c); err != nil {
			return Verdict{}, err
		}
		if s.outside(c.reply) && attempt < attempts {
			continue // nothing was charged, and by now the store's clock is known
		}
		v, err := parseVerdict(c.reply, r)
		if err != nil {
			return Verdict{}, couldNotAsk("take", err)
		}
		return v, nil
	}
}

// takeCall lays r out as lua/take.lua reads it, where the store's clock is about now.
func takeCall(r Request, now time.Time) *call {
	shards := make([]int, 0, len(r.Charges))
	for _, c := range r.Charges {
		if !slices.Contains(shards, c.Shard) {
			shards = append(shards, c.Shard)
		}
	}
	keys := make([]string, 0, len(shards)+len(r.Charges))
	for _, shard := range shards {
		keys = append(keys, shardKey(shard))
	}
	var more []string
	args := make([]any, 0, 8+14*len(r.Charges))
	args = append(args, nil, len(shards), bit(r.MayWait), r.WaitFor.Microseconds(), cleanTraceparent(r.Traceparent),
		r.GiveBackFor.Microseconds(), uint64(r.Holder), bit(r.forced))
	for _, c := range r.Charges {
		keys = append(keys, recordKey(c.Ref))
		more = append(more, c.moreKeys()...)
		args = append(args, slices.Index(shards, c.Shard)+1, c.Policy, c.Variant, c.Revision, bit(c.Leased),
			int64(c.Part.Capacity), int64(c.Part.Rate), int64(c.Pool.Capacity), int64(c.Cost), c.Sealed, int64(c.Waits),
			bit(c.OnLossEmpty), int64(c.Denied), c.special(now))
	}
	return &call{shards: shards, keys: append(keys, more...), args: args}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// parseVerdict reads take's reply to r.
func parseVerdict(reply []any, r Request) (Verdict, error) {
	const perCharge, perReceipt = 11, 8
	if err := stopped(reply); err != nil {
		return Verdict{}, err
	}
	charges := len(r.Charges)
	receipts := r.wantsReceipts() && len(reply) == 1+(perCharge+perReceipt)*charges
	if len(reply) != 1+perCharge*charges && !receipts {
		return Verdict{}, errReply
	}
	f := fields{reply}
	v := Verdict{Outcome: Outcome(f.integer()), States: make([]State, charges)}
	for i, c := range r.Charges {
		v.States[i] = f.state(c)
		v.Delay = max(v.Delay, v.States[i].Delay)
	}
	if receipts {
		v.Receipts = make([]Receipt, charges)
	}
	for i := range v.Receipts {
		v.Receipts[i] = f.receipt(r.Charges[i], v.States[i], r.Holder)
	}
	if f.values == nil || v.Outcome < Admitted || v.Outcome > Banned || receipts != (r.wantsReceipts() && v.Outcome == Admitted) {
		return Verdict{}, errReply
	}
	return v, nil
}

// stopped is why nothing happened, where a charge stopped the take before anything else.
func stopped(reply []any) error {
	switch first, err := status(reply); {
	case err != nil:
		return err
	case first == -2:
		return ErrOlderRevision
	case first == outsideWindows:
		return errClock
	case first == -4:
		return ErrHolderGone
	default:
		return nil
	}
}

// wantsReceipts tells whether r, admitted, has receipts.
func (r Request) wantsReceipts() bool {
	return r.GiveBackFor > 0 || slices.ContainsFunc(r.Charges, func(c Charge) bool { return c.Algorithm == limit.Concurrency })
}

func (f *fields) state(c Charge) State {
	s := State{
		Lacking:   f.integer() == 1,
		Level:     limit.Micro(f.integer()),
		Left:      limit.Tokens(f.integer()),
		PoolLevel: limit.Tokens(f.integer()),
		PoolAge:   limit.Micros(f.integer()),
		RetryIn:   limit.Micros(f.integer()),
		Heard:     limit.Micros(f.integer()),
		Round:     limit.Micros(f.integer()),
		Delay:     limit.Micros(f.integer()),
		Reset:     limit.Micros(f.integer()),
		Banned:    limit.Micros(f.integer()),
	}
	if c.Algorithm == limit.TokenBucket {
		s.Remaining = max(0, s.Level.Whole()) + s.Left
		s.Reset = c.Part.TimeTo(c.Part.Capacity.Micro() - s.Level)
	} else {
		s.Remaining, s.Level = limit.Tokens(s.Level), 0
	}
	s.RetryIn = max(s.RetryIn, s.Banned)
	return s
}

func (f *fields) receipt(c Charge, s State, holder Holder) Receipt {
	r := Receipt{
		Ref: c.Ref, Algorithm: c.Algorithm, Epoch: f.text(), Session: uint64(f.integer()), Lease: uint64(f.integer()),
		FromLease: limit.Tokens(f.integer()), At: limit.Micros(f.integer()), Until: limit.Micros(f.integer()),
		Window: limit.Micros(f.integer()), Entry: uint64(f.integer()),
	}
	r.FromPart = c.Cost - r.FromLease
	if s.Delay > 0 {
		r.Turn = r.At + s.Delay
	}
	if c.Algorithm == limit.Concurrency {
		r.Holder = holder
	}
	return r
}

// fields reads a reply of known length, value by value; values is nil after one of another type than expected.
type fields struct{ values []any }

func (f *fields) integer() int64 { return next[int64](f) }
func (f *fields) text() string   { return next[string](f) }

func next[T any](f *fields) (value T) {
	if len(f.values) == 0 {
		return value
	}
	value, ok := f.values[0].(T)
	if f.values = f.values[1:]; !ok {
		f.values = nil
	}
	return value
}

// check says what no script may be asked.
func (r Request) check() error {
	if len(r.Charges) == 0 || len(r.Charges) > MaxCharges {
		return fmt.Errorf("%d charges in one take; give 1 to %d", len(r.Charges), MaxCharges)
	}
	if r.WaitFor < 0 || limit.Micros(r.WaitFor.Microseconds()) > maxDuration {
		return fmt.Errorf("wait %s; give 0 to 24h", r.WaitFor)
	}
	if r.GiveBackFor < 0 || limit.Micros(r.GiveBackFor.Microseconds()) > maxDuration {
		return fmt.Errorf("give back for %s; give 0 to 24h", r.GiveBackFor)
	}
	for i, c := range r.Charges {
		if err := cmpErr(c.check(), c.checkAlgorithm(r.Holder)); err != nil {
			return fmt.Errorf("policy %q: %w", c.Policy[:min(len(c.Policy), maxName)], err)
		}
		for _, other := range r.Charges[:i] {
			if other.Key == c.Key {
				return fmt.Errorf("policies %q and %q charge the same bucket", other.Policy, c.Policy)
			}
		}
	}
	return r.checkKeys()
}

func (c Charge) check() error {
	if err := c.Ref.check(); err != nil {
		return err
	}
	if err := checkBudget(c.Part, c.Algorithm.MaxN()); err != nil {
		return err
	}
	if err := checkBudget(c.Pool, limit.MaxTokens); err != nil {
		return err
	}
	switch {
	case c.Policy == "" || len(c.Policy) > maxName || len(c.Variant) > maxName || len(c.Sealed) > maxSealed:
		return fmt.Errorf("policy, variant or sealed identity too long; at most %d, %d and %d bytes", maxName, maxName, maxSealed)
	case c.Revision > maxNumber:
		return fmt.Errorf("revision %d is too large", c.Revision)
	case c.Waits < 0 || c.Waits > maxNumber:
		return fmt.Errorf("round %d is none that a take returned", c.Waits)
	case c.Denied < 0 || c.Denied > limit.MaxTokens:
		return fmt.Errorf("cost %d denied from memory; give 0 to %d", c.Denied, limit.MaxTokens)
	case c.Cost < 0 || c.Cost > max(limit.MaxTokens, c.Algorithm.MaxN()):
		return fmt.Errorf("cost %d; give 0 to %d", c.Cost, max(limit.MaxTokens, c.Algorithm.MaxN()))
	}
	return nil
}

func (r Ref) check() error {
	if r.Shard < 0 || r.Shard >= MaxShards {
		return fmt.Errorf("shard %d; give 0 to %d", r.Shard, MaxShards-1)
	}
	return nil
}

func checkBudget(b limit.Budget, most limit.Tokens) error {
	if b.Capacity < 0 || b.Capacity > most || b.Rate < 0 || b.Rate > limit.MaxRate {
		return errors.New("capacity or rate out of range (" + b.String() + ")")
	}
	return nil
}
