package lessor_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/annona-gateway/annona/allocator/journal"
	"github.com/annona-gateway/annona/allocator/ledger"
	"github.com/annona-gateway/annona/allocator/ledger/factpb"
	"github.com/annona-gateway/annona/allocator/lessor"
	"github.com/annona-gateway/annona/shared/bus/bustest"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
)

// serve runs a lessor over server until the test or the returned function ends it. The journal is made if init.
func serve(t testing.TB, server *bustest.Server, init bool) (*journal.JetStream, func()) {
	t.Helper()
	conn := server.Connect(t)
	j, err := journal.OpenJetStream(t.Context(), conn, 0, init)
	if err != nil {
		t.Fatalf("OpenJetStream: %v", err)
	}
	cfg := config(j, &syncBuffer{})
	cfg.Conn, cfg.Now = conn, nil
	l := lessor.New(cfg)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
	t.Cleanup(stop)
	eventually(t, "the lessor is ready", func() bool { return l.Ready() == nil })
	return j, stop
}

// eventually waits until done is true, at most 30 s.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	const tick, most = 5 * time.Millisecond, 30 * time.Second
	deadline := time.After(most)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for !done() {
		select {
		case <-deadline:
			t.Fatalf("after %s still not: %s", most, what)
		case <-ticker.C:
		}
	}
}

// ask sends env as an agent does, with the same bytes until an answer comes.
func ask(t testing.TB, conn *nats.Conn, env *leasepb.Envelope) *leasepb.Reply {
	t.Helper()
	data, err := lease.EncodeEnvelope(env)
	if err != nil {
		t.Fatal(err)
	}
	var reply *leasepb.Reply
	eventually(t, fmt.Sprintf("an answer to %v", env), func() bool {
		m, err := conn.Request(lease.LeaseSubject(env.GetRegion(), int(env.GetShard())), data, time.Second)
		if err != nil {
			return false
		}
		if reply, err = lease.DecodeReply(m.Data, env); err != nil {
			t.Fatal(err)
		}
		return reply.GetRefused() == ""
	})
	return reply
}

func TestOverNATSAnAnswerIsInTheJournal(t *testing.T) {
	server := bustest.Start(t, bustest.Options{})
	j, _ := serve(t, server, true)
	conn := server.Connect(t)
	for shard := range shards {
		reply := ask(t, conn, envelope("eu", shard, want(keyOf(shard, 1), 1, 10)))
		if got := reply.GetAnswers()[0].GetGranted(); got != 10 {
			t.Errorf("shard %d granted %d, want 10", shard, got)
		}
		books, last := replayed(t, j, shard)
		if pool, ok := books.Pool(0, "per-user", keyOf(shard, 1)); !ok || pool.Holdings[0].Outstanding != 10 {
			t.Errorf("shard %d: the journal says %+v, want 10 out", shard, pool)
		}
		if reply.GetSequence() != last {
			t.Errorf("shard %d: the answer names record %d, the journal ends with %d", shard, reply.GetSequence(), last)
		}
	}
}

// replayed adds up what a shard's journal holds.
func replayed(t *testing.T, j journal.Journal, shard int) (*ledger.Ledger, uint64) {
	t.Helper()
	books := ledger.New()
	last, err := j.Replay(t.Context(), shard, func(_ uint64, record []byte) error {
		batch := &factpb.Batch{}
		if err := proto.Unmarshal(record, batch); err != nil {
			return err
		}
		for _, fact := range batch.GetFacts() {
			books.Apply(fact)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return books, last
}

// TestCase13NothingIsGrantedTwiceOverRestarts asks in turn while NATS and the allocator are ended and started again.
func TestCase13NothingIsGrantedTwiceOverRestarts(t *testing.T) {
	server := bustest.Start(t, bustest.Options{})
	_, stop := serve(t, server, true)
	conn := server.Connect(t)
	key := keyOf(0, 1)
	var told int64
	var last *leasepb.Reply
	for seq := uint64(1); seq <= 8; seq++ {
		env := envelope("eu", 0, want(key, seq, 3))
		if last != nil {
			env = echoing(env, last)
		}
		last = ask(t, conn, env)
		told += last.GetAnswers()[0].GetGranted()
		if again := ask(t, conn, env); !proto.Equal(again.GetAnswers()[0], last.GetAnswers()[0]) {
			t.Errorf("seq %d was answered %v, then %v", seq, last.GetAnswers()[0], again.GetAnswers()[0])
		}
		switch {
		case seq%4 == 0:
			stop()
			_, stop = serve(t, server, false)
		case seq%2 == 0:
			server.Restart(t)
		}
	}
	j, err := journal.OpenJetStream(t.Context(), conn, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	books, _ := replayed(t, j, 0)
	pool, ok := books.Pool(0, "per-user", key)
	if !ok || int64(pool.Holdings[0].Granted) != told {
		t.Errorf("the journal says %+v, told were %d", pool, told)
	}
	if told != 8*3 {
		t.Errorf("granted %d in all, want %d", told, 8*3)
	}
}

func TestRunEndsWhereTheConnectionWasClosed(t *testing.T) {
	server := bustest.Start(t, bustest.Options{})
	conn := server.Connect(t)
	j, err := journal.OpenJetStream(t.Context(), server.Connect(t), 0, true)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	cfg := config(j, &syncBuffer{})
	cfg.Conn = conn
	if err := lessor.New(cfg).Run(t.Context()); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("Run = %v, want that the connection is closed", err)
	}
}
