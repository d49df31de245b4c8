package lessor_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/annona-gateway/annona/allocator/journal/journaltest"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
)

// life is how long a lease of the default times may be out: ttl, drift and margin.
const life = 10*time.Second + 100*time.Millisecond + 3*time.Second + 100*time.Millisecond

// echoing returns env as an agent sends it that was answered reply before.
func echoing(env *leasepb.Envelope, reply *leasepb.Reply) *leasepb.Envelope {
	env.Term, env.Sequence = reply.GetTerm(), reply.GetSequence()
	return env
}

func TestF1AnEchoThatTheJournalHasBeginsNoEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &journaltest.Memory{}
		r := start(t, memory)
		first := r.ask(envelope("eu", 0, want(keyOf(0, 1), 1, 5)))
		second := r.ask(echoing(envelope("eu", 0, want(keyOf(0, 1), 2, 5)), first))
		if second.GetTerm() != first.GetTerm() || second.GetSequence() <= first.GetSequence() || second.GetContact() <= first.GetContact() {
			t.Errorf("answers name %s/%d/%d, then %s/%d/%d, want the same term and larger numbers",
				first.GetTerm(), first.GetSequence(), first.GetContact(), second.GetTerm(), second.GetSequence(), second.GetContact())
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		r = start(t, memory)
		third := r.ask(echoing(envelope("eu", 0, want(keyOf(0, 1), 3, 5)), second))
		if third.GetTerm() == second.GetTerm() {
			t.Error("a new writer goes on in the old one's term")
		}
		if got := r.epochs(0); got != 0 {
			t.Errorf("%d journal epochs, want none", got)
		}
		if got := third.GetAnswers()[0].GetGranted(); got != 5 {
			t.Errorf("granted %d, want 5", got)
		}
	})
}

func TestF1ALostJournalBeginsAnEpochWithEmptyPools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &journaltest.Memory{}
		r := start(t, memory)
		key := keyOf(0, 1)
		before := r.ask(envelope("eu", 0, want(key, 1, 60)))
		if got := before.GetAnswers()[0].GetGranted(); got != 60 {
			t.Fatalf("granted %d, want 60", got)
		}
		us := r.ask(envelope("us", 0))
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		memory.Roll(0, 0)
		r = start(t, memory)
		emptied := time.Now()
		// us knows nothing of eu's 60. Full pools would give it 61 more than there are.
		for seq := uint64(1); time.Since(emptied) < life-time.Second; seq++ {
			if got := r.granted(echoing(envelope("us", 0, want(key, seq, 91)), us)).GetGranted(); got != 0 {
				t.Fatalf("granted %d, %s after the loss", got, time.Since(emptied))
			}
			pass(time.Second)
		}
		// The loss was noticed; another agent that echoes the lost term, or the same again, loses nothing more.
		r.ask(echoing(envelope("eu", 0, want(key, 2, 1)), before))
		if got := r.epochs(0); got != 1 {
			t.Errorf("%d journal epochs for one loss, want 1", got)
		}
		pass(3 * time.Second)
		rate := limit.Tokens(50)
		got := limit.Tokens(r.granted(echoing(envelope("us", 0, want(key, 99, 91)), us)).GetGranted())
		if got == 0 || got > 3*rate {
			t.Errorf("granted %d soon after the leases ran out, want what has refilled since", got)
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		r = start(t, memory)
		r.ask(echoing(envelope("eu", 0), before))
		if got := r.epochs(0); got != 1 {
			t.Errorf("%d journal epochs after a restart, want still 1", got)
		}
	})
}

// TestF1ARolledBackJournalBeginsAnEpoch restores a journal that lacks only the last record, whose number the new writer's own
// record gets then: the term is known, and something has that number, but it is not what the agent was told.
func TestF1ARolledBackJournalBeginsAnEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &journaltest.Memory{}
		r := start(t, memory)
		key := keyOf(0, 1)
		first := r.ask(envelope("eu", 0, want(key, 1, 10)))
		second := r.ask(echoing(envelope("eu", 0, want(key, 2, 50)), first))
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		memory.Roll(0, len(memory.Records(0))-1)
		// The shards' numbers are one sequence, so this shard must begin first to get the lost record's.
		r = startShard0First(t, memory)
		if reused := r.ask(envelope("us", 0)).GetSequence(); reused != second.GetSequence() {
			t.Fatalf("the new writer's record is %d, want the lost one's number %d, else this tests nothing", reused, second.GetSequence())
		}
		if got := r.granted(echoing(envelope("eu", 0, want(key, 3, 20)), second)).GetGranted(); got != 0 {
			t.Errorf("granted %d after the journal was rolled back, want nothing before every lease has run out", got)
		}
		if got := r.epochs(0); got != 1 {
			t.Errorf("%d journal epochs, want 1", got)
		}
	})
}

// startShard0First starts a lessor whose other shards begin later.
func startShard0First(t *testing.T, memory *journaltest.Memory) *rig {
	t.Helper()
	first := make(chan struct{})
	memory.Fault = func(shard int, _ []byte) (bool, error) {
		if shard != 0 {
			<-first
		}
		return true, nil
	}
	r := start(t, memory)
	close(first)
	synctest.Wait()
	return r
}

func TestF1AJournalThatIsRolledBackUnderItsWriterIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &journaltest.Memory{})
		key := keyOf(0, 1)
		first := r.ask(envelope("eu", 0, want(key, 1, 60)))
		r.memory.Roll(0, 0)
		env := echoing(envelope("us", 0, want(key, 1, 91)), first)
		if reply := r.ask(env); reply != nil {
			t.Fatalf("answered %v out of a journal that is gone", reply)
		}
		pass(time.Second)
		if got := r.granted(env).GetGranted(); got != 0 {
			t.Errorf("granted %d, want nothing before every lease has run out", got)
		}
	})
}

func TestF1OneEpochForAllThatABatchEchoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &journaltest.Memory{})
		for i, region := range []string{"eu", "us", "ap"} {
			env := envelope(region, 0, want(keyOf(0, 1), 1, 10))
			env.Term, env.Sequence = "a term of a journal that was", uint64(i)
			if got := r.granted(env).GetGranted(); got != 0 {
				t.Errorf("%s was granted %d, want nothing", region, got)
			}
		}
		if got := r.epochs(0); got != 1 {
			t.Errorf("%d journal epochs, want 1", got)
		}
		if got := r.epochs(1); got != 0 {
			t.Errorf("%d journal epochs in another shard, want none", got)
		}
	})
}
