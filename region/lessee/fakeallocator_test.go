package lessee_test

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
)

// allocator is the other end: a pool a key with tokens enough, unless limited.
type allocator struct {
	mu        sync.Mutex
	pools     map[string]*pool
	envelopes []*leasepb.Envelope // those with items
	raw       [][]byte
	attempts  int
	delay     time.Duration
	level     int64
	// fault, if set, sees each request before it is decided: it may fail it, before or after that.
	fault func(e *leasepb.Envelope) (decided bool, err error)
	// refuse, if set, refuses an item.
	refuse func(item *leasepb.Item) leasepb.Refusal
	// refused refuses whole envelopes.
	refused string
	// mangle, if set, may change a reply; header is that of the request.
	mangle   func(e *leasepb.Envelope, reply *nats.Msg)
	header   nats.Header
	sequence uint64
}

// pool is what the allocator counts for one key, for one region.
type pool struct {
	session, seq                     uint64
	granted, spent, returned, lapsed int64 // in the session
	lastGrant                        int64
	level                            int64
	answer                           *leasepb.Answer
}

func newAllocator() *allocator {
	return &allocator{pools: map[string]*pool{}, level: 1000, delay: 80 * time.Millisecond}
}

func (a *allocator) RequestMsgWithContext(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
	e, err := lease.DecodeEnvelope(msg.Data, msg.Subject)
	if err != nil {
		return nil, err
	}
	answer, err := a.decide(e, msg)
	delay := time.NewTimer(a.delay)
	defer delay.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-delay.C:
	}
	if errors.Is(err, errLost) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return answer, err
}

var errLost = errors.New("lost on the way")

func (a *allocator) decide(e *leasepb.Envelope, msg *nats.Msg) (*nats.Msg, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.header = msg.Header
	if len(e.GetItems()) > 0 {
		a.attempts++
		a.envelopes, a.raw = append(a.envelopes, e), append(a.raw, msg.Data)
	}
	decided, failure := true, error(nil)
	if a.fault != nil {
		decided, failure = a.fault(e)
	}
	if failure != nil && !decided {
		return nil, failure
	}
	a.sequence++
	reply := &leasepb.Reply{Proto: lease.Proto, Term: "t1", Sequence: a.sequence, Contact: a.sequence, Refused: a.refused}
	if a.refused == "" {
		for _, item := range e.GetItems() {
			reply.Answers = append(reply.Answers, a.answer(item))
		}
	}
	data, err := lease.EncodeReply(reply, e)
	sent := &nats.Msg{Data: data}
	if a.mangle != nil {
		a.mangle(e, sent)
	}
	return sent, cmp.Or(failure, err)
}

// answer decides one item by rules C2, C3 and C5.
func (a *allocator) answer(item *leasepb.Item) *leasepb.Answer {
	answer := &leasepb.Answer{
		Key: item.GetKey(), Policy: item.GetPolicy(), Session: item.GetSession(), Seq: item.GetSeq(),
	}
	if a.refuse != nil {
		if answer.Refusal = a.refuse(item); answer.Refusal != 0 {
			return answer
		}
	}
	p := a.pools[string(item.GetKey())]
	if p == nil {
		p = &pool{level: a.level}
		a.pools[string(item.GetKey())] = p
	}
	switch {
	case item.GetSession() > p.session:
		*p = pool{session: item.GetSession(), level: p.level}
	case item.GetSession() == p.session && item.GetSeq() == p.seq:
		return p.answer
	case item.GetSession() < p.session || item.GetSeq() < p.seq:
		answer.Refusal = leasepb.Refusal_REFUSAL_OLD_SEQ
		return answer
	}
	if item.GetApplied() < p.seq { // the last grant never arrived: void
		p.level += p.lastGrant
		p.granted -= p.lastGrant
	}
	p.level += item.GetReturned() - p.returned
	p.spent, p.returned, p.lapsed = item.GetSpent(), item.GetReturned(), item.GetLapsed()
	grant := min(item.GetWant(), p.level)
	p.level -= grant
	p.granted += grant
	p.seq, p.lastGrant = item.GetSeq(), grant
	answer.Granted, answer.TtlUs, answer.PoolLevel = grant, (10 * time.Second).Microseconds(), p.level
	if p.level == 0 {
		answer.DryForUs = (100 * time.Millisecond).Microseconds()
	}
	p.answer = answer
	return answer
}

func (a *allocator) pool(at bucket.Ref) pool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.pools[string(at.Key[:])]; p != nil {
		return *p
	}
	return pool{}
}

// sent returns the items sent so far, by envelope, as "shard:items".
func (a *allocator) sent() (all []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.envelopes {
		all = append(all, strconv.Itoa(int(e.GetShard()))+":"+strconv.Itoa(len(e.GetItems())))
	}
	return all
}

// change lets a test change the allocator's ways while it serves.
func (a *allocator) change(f func(*allocator)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(a)
}
