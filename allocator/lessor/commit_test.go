package lessor_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/annona-gateway/annona/allocator/journal"
	"github.com/annona-gateway/annona/allocator/journal/journaltest"
	"github.com/annona-gateway/annona/allocator/ledger/factpb"
	"github.com/annona-gateway/annona/allocator/lessor"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
)

func TestF2NothingIsHeardBeforeTheAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &journaltest.Memory{}
		gate := make(chan struct{})
		memory.Fault = func(_ int, record []byte) (bool, error) {
			if !isBegun(record) {
				<-gate
			}
			return true, nil
		}
		r := start(t, memory)
		key := keyOf(0, 1)
		replies := r.send(envelope("eu", 0, want(key, 1, 10)), nil)
		if reply := answer(replies); reply != nil {
			t.Fatalf("answered %v before the journal did", reply)
		}
		seen := make(chan lessor.Snapshot, 1)
		go func() {
			pool, _, err := r.lessor.Pool(t.Context(), "per-user", key)
			if err != nil {
				t.Errorf("Pool = %v", err)
			}
			seen <- pool
		}()
		synctest.Wait()
		if len(seen) != 0 {
			t.Fatal("the admin API saw a pool before the journal had its facts")
		}
		close(gate)
		if reply := answer(replies); reply == nil || reply.GetAnswers()[0].GetGranted() != 10 {
			t.Fatalf("answer after the ack = %v, want 10 granted", reply)
		}
		if pool := <-seen; len(pool.Holdings) != 1 || pool.Holdings[0].Outstanding != 10 {
			t.Errorf("the admin API saw %+v, want what was acknowledged", pool)
		}
		if got := r.outstanding("eu", key); got != 10 {
			t.Errorf("the journal has %d out, want the 10 that were told", got)
		}
	})
}

// isBegun reports whether a record begins a term.
func isBegun(record []byte) bool {
	batch := &factpb.Batch{}
	return proto.Unmarshal(record, batch) == nil && batch.GetFacts()[0].GetBegun() != nil
}

// isSweep reports whether a record is a sweep's.
func isSweep(record []byte) bool {
	batch := &factpb.Batch{}
	return proto.Unmarshal(record, batch) == nil && batch.GetFacts()[0].GetDecided() == nil && !isBegun(record)
}

// TestF2AFailedAppendIsUnheardAndReplayed breaks the journal at each kind of record in both ways, and as another writer would.
// Then nothing is answered, the same request soon is, and what was told is what the journal adds up to.
func TestF2AFailedAppendIsUnheardAndReplayed(t *testing.T) {
	kinds := map[string]func([]byte) bool{
		"begin":  isBegun,
		"decide": func(record []byte) bool { return !isBegun(record) && !isSweep(record) },
		"sweep":  isSweep,
	}
	faults := map[string]struct {
		persist bool
		err     error
	}{
		"failed and not written": {false, journal.ErrUnknown},
		"failed but written":     {true, journal.ErrUnknown},
		"conflict":               {false, journal.ErrConflict},
		"broken":                 {true, errors.New("disk on fire")},
	}
	for _, kind := range sorted(kinds) {
		for _, name := range sorted(faults) {
			t.Run(kind+" "+name, func(t *testing.T) {
				fault := faults[name]
				synctest.Test(t, func(t *testing.T) { failOnce(t, kinds[kind], fault.persist, fault.err) })
			})
		}
	}
}

func failOnce(t *testing.T, breaks func([]byte) bool, persist bool, fault error) {
	t.Helper()
	memory := &journaltest.Memory{}
	failed := 0
	memory.Fault = func(shard int, record []byte) (bool, error) {
		if shard == 1 && failed == 0 && breaks(record) {
			failed++
			return persist, fault
		}
		return true, nil
	}
	r := start(t, memory)
	key := keyOf(1, 1)
	told := int64(0)
	// Enough rounds of a second that leases lapse and a sweep writes it down.
	for seq := uint64(1); seq <= 3; seq++ {
		env := envelope("eu", 1, want(key, seq, 5))
		reply := r.ask(env)
		for tries := 0; reply == nil && tries < 5; tries++ {
			pass(time.Second)
			reply = r.ask(env)
		}
		if reply == nil || len(reply.GetAnswers()) != 1 {
			t.Fatalf("seq %d: answer %v within 5 s, want progress", seq, reply)
		}
		told += reply.GetAnswers()[0].GetGranted()
		if got := r.outstanding("eu", key); int64(got) < reply.GetAnswers()[0].GetGranted() {
			t.Fatalf("seq %d: the journal has %d out, told were %d", seq, got, reply.GetAnswers()[0].GetGranted())
		}
		pass(20 * time.Second)
	}
	if failed != 1 {
		t.Fatal("the fault was not met; the test tests nothing")
	}
	if err := r.lessor.Ready(); err != nil {
		t.Errorf("Ready = %v, want nil again", err)
	}
	pool, ok := r.books(1).Pool(0, "per-user", key)
	if !ok || len(pool.Holdings) != 1 || int64(pool.Holdings[0].Granted) != told {
		t.Errorf("the journal says %+v, want %d granted, as told", pool, told)
	}
}

func TestF2OfTwoWritersTheFirstIsFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &journaltest.Memory{}
		old := start(t, memory)
		key := keyOf(2, 1)
		if got := old.granted(envelope("eu", 2, want(key, 1, 10))).GetGranted(); got != 10 {
			t.Fatalf("granted %d, want 10", got)
		}
		successor := start(t, memory)
		if reply := old.ask(envelope("us", 2, want(key, 1, 90))); reply != nil {
			t.Fatalf("the fenced writer answered %v", reply)
		}
		if got := successor.granted(envelope("us", 2, want(key, 1, 90))).GetGranted(); got <= 0 || got > poolCapacity-10 {
			t.Fatalf("the successor granted %d, want some of what is left", got)
		}
		if got := old.log.count("another writer serves this shard too"); got != 1 {
			t.Errorf("the fenced writer said so %d times, want once", got)
		}
		// The old one reads the journal again and is fenced out no more; then the other is. Whoever answers, it adds up.
		pass(time.Second)
		told := old.granted(envelope("us", 2, want(key, 1, 90))).GetGranted()
		if got := old.outstanding("us", key); int64(got) != told {
			t.Errorf("the journal has %d out in us, told were %d", got, told)
		}
	})
}

func TestC3TheSameSeqGetsTheSameAnswerAlsoAfterReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &journaltest.Memory{}
		r := start(t, memory)
		env := envelope("eu", 3, want(keyOf(3, 1), 1, 10))
		first := r.granted(env)
		records := len(memory.Records(3))
		pass(time.Second)
		if again := r.granted(env); !proto.Equal(first, again) {
			t.Errorf("the repeat was answered %v, want %v", again, first)
		}
		if got := len(memory.Records(3)); got != records {
			t.Errorf("the repeat cost %d records, want none", got-records)
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if again := start(t, memory).granted(env); !proto.Equal(first, again) {
			t.Errorf("the repeat after a restart was answered %v, want %v", again, first)
		}
	})
}

func TestWhileAnAppendIsOutTheNextBatchGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &journaltest.Memory{}
		gate, appends := make(chan struct{}), 0
		memory.Fault = func(shard int, record []byte) (bool, error) {
			if shard == 0 && !isBegun(record) {
				appends++
				<-gate
			}
			return true, nil
		}
		r := start(t, memory)
		const envelopes = 20
		var replies []<-chan *leasepb.Reply
		for i := range envelopes {
			replies = append(replies, r.send(envelope("eu", 0, want(keyOf(0, i), 1, 1)), nil))
			synctest.Wait()
		}
		close(gate)
		for i, reply := range replies {
			if got := answer(reply); got == nil || got.GetAnswers()[0].GetGranted() != 1 {
				t.Errorf("envelope %d answered %v, want 1 granted", i, got)
			}
		}
		if appends != 2 {
			t.Errorf("%d envelopes took %d appends, want 2: the first, and the others together", envelopes, appends)
		}
	})
}

func TestAFullQueueIsAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &journaltest.Memory{}
		gate := make(chan struct{})
		memory.Fault = func(_ int, record []byte) (bool, error) {
			if !isBegun(record) {
				<-gate
			}
			return true, nil
		}
		r := start(t, memory)
		defer close(gate)
		full := make([]*leasepb.Item, lease.MaxItems)
		for i := range full {
			full[i] = want(keyOf(0, i), 1, 1)
		}
		for sent := 0; sent <= lessor.QueueItems+lease.MaxItems; sent += lease.MaxItems {
			if reply := r.ask(envelope("eu", 0, full...)); reply != nil {
				if reply.GetRefused() == "" {
					t.Errorf("answered %v before the ack", reply)
				}
				return
			}
		}
		t.Errorf("more than %d items were queued", lessor.QueueItems)
	})
}

func TestTheQueueHasRoomAgainOnceItWasServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &journaltest.Memory{})
		full := make([]*leasepb.Item, lease.MaxItems)
		for sent := 0; sent <= 2*lessor.QueueItems; sent += lease.MaxItems {
			for i := range full {
				full[i] = want(keyOf(0, i), uint64(sent+1), 0)
			}
			if reply := r.ask(envelope("eu", 0, full...)); reply == nil || reply.GetRefused() != "" {
				t.Fatalf("after %d items one envelope alone was answered %v", sent, reply)
			}
		}
	})
}

func TestRecordsStayWithinWhatTheJournalTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &journaltest.Memory{}
		gate := make(chan struct{})
		memory.Fault = func(_ int, record []byte) (bool, error) {
			if !isBegun(record) {
				<-gate
			}
			return true, nil
		}
		r := start(t, memory)
		var replies []<-chan *leasepb.Reply
		const envelopes = 6
		for i := range envelopes {
			items := make([]*leasepb.Item, lease.MaxItems)
			for j := range items {
				items[j] = want(keyOf(0, i*lease.MaxItems+j), 1, 1)
				items[j].Sealed = bytes.Repeat([]byte{1}, lease.MaxSealed)
			}
			replies = append(replies, r.send(envelope(fmt.Sprint([]string{"eu", "us"}[i%2]), 0, items...), nil))
		}
		close(gate)
		for i, reply := range replies {
			if got := answer(reply); got == nil || len(got.GetAnswers()) != lease.MaxItems {
				t.Fatalf("envelope %d was not answered", i)
			}
		}
		records := memory.Records(0)
		if len(records) < envelopes {
			t.Errorf("%d records; the facts of these envelopes do not fit so few", len(records))
		}
		if pools := r.books(0).Pools(0); len(pools) != envelopes*lease.MaxItems {
			t.Errorf("the journal has %d pools, want %d", len(pools), envelopes*lease.MaxItems)
		}
	})
}

func TestEndingFinishesTheBatchAndTakesNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &journaltest.Memory{}
		gate := make(chan struct{})
		memory.Fault = func(_ int, record []byte) (bool, error) {
			if !isBegun(record) {
				<-gate
			}
			return true, nil
		}
		r := start(t, memory)
		first := r.send(envelope("eu", 0, want(keyOf(0, 1), 1, 1)), nil)
		synctest.Wait()
		second := r.send(envelope("eu", 0, want(keyOf(0, 2), 1, 1)), nil)
		ended := make(chan error, 1)
		go func() { ended <- r.stop() }()
		synctest.Wait()
		if len(ended) != 0 {
			t.Fatal("Run returned with a batch in flight")
		}
		close(gate)
		if err := <-ended; err != nil {
			t.Fatalf("Run = %v, want nil", err)
		}
		for i, reply := range []<-chan *leasepb.Reply{first, second} {
			if got := answer(reply); got == nil || got.GetAnswers()[0].GetGranted() != 1 {
				t.Errorf("envelope %d, which came before the end, was answered %v", i, got)
			}
		}
		if reply := r.ask(envelope("eu", 0, want(keyOf(0, 3), 1, 1))); reply != nil {
			t.Errorf("answered %v after the end", reply)
		}
		if r.lessor.Ready() == nil {
			t.Error("Ready = nil after the end")
		}
	})
}
