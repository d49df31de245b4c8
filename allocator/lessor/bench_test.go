package lessor_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/annona-gateway/annona/shared/bus/bustest"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
)

// The two benchmarks are one comparison: items a second through NATS, ledger and journal, and the same records alone, published
// one after another to the same kind of stream. Each shard has one client that waits for its answer, as an agent's
// request does for one shard.

// BenchmarkItems asks with full envelopes.
func BenchmarkItems(b *testing.B) {
	server := bustest.Start(b, bustest.Options{})
	serve(b, server, true)
	b.ReportAllocs()
	b.ResetTimer()
	began := time.Now()
	eachShard(b, func(shard, rounds int) error {
		conn := server.Connect(b)
		for round := range rounds {
			env := fullEnvelope(shard, uint64(round+1))
			data, err := lease.EncodeEnvelope(env)
			if err != nil {
				return err
			}
			m, err := conn.Request(lease.LeaseSubject("eu", shard), data, 10*time.Second)
			if err != nil {
				return err
			}
			if reply, err := lease.DecodeReply(m.Data, env); err != nil || reply.GetRefused() != "" {
				return fmt.Errorf("reply %s: %w", reply.GetRefused(), err)
			}
		}
		return nil
	})
	b.ReportMetric(float64(b.N*lease.MaxItems)/time.Since(began).Seconds(), "items/s")
}

// BenchmarkJetStream publishes the records that BenchmarkItems' envelopes become.
func BenchmarkJetStream(b *testing.B) {
	server := bustest.Start(b, bustest.Options{})
	j, stop := serve(b, server, true)
	conn := server.Connect(b)
	records := make([][]byte, shards)
	for shard := range shards {
		ask(b, conn, fullEnvelope(shard, 1))
		ask(b, conn, fullEnvelope(shard, 2))
	}
	stop()
	last := make([]uint64, shards)
	for shard := range shards {
		var err error
		last[shard], err = j.Replay(b.Context(), shard, func(_ uint64, record []byte) error {
			records[shard] = record
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	js, err := jetstream.New(conn)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(records[0])))
	b.ResetTimer()
	began := time.Now()
	eachShard(b, func(shard, rounds int) error {
		for range rounds {
			ack, err := js.Publish(b.Context(), lease.JournalSubject(shard), records[shard],
				jetstream.WithExpectLastSequencePerSubject(last[shard]))
			if err != nil {
				return err
			}
			last[shard] = ack.Sequence
		}
		return nil
	})
	b.ReportMetric(float64(b.N*lease.MaxItems)/time.Since(began).Seconds(), "items/s")
}

// eachShard divides b.N rounds over the shards and runs them at once.
func eachShard(b *testing.B, run func(shard, rounds int) error) {
	b.Helper()
	errs := make(chan error, shards)
	for shard := range shards {
		rounds := (b.N + shards - 1 - shard) / shards
		go func() { errs <- run(shard, rounds) }()
	}
	for range shards {
		if err := <-errs; err != nil {
			b.Error(err)
		}
	}
}

// fullEnvelope settles what the round before granted and asks for more, for as many keys as fit.
func fullEnvelope(shard int, seq uint64) *leasepb.Envelope {
	items := make([]*leasepb.Item, lease.MaxItems)
	for n := range items {
		items[n] = want(keyOf(shard, n), seq, 1)
		items[n].Spent = int64(seq - 1)
		items[n].Demand = 1
	}
	return envelope("eu", shard, items...)
}
