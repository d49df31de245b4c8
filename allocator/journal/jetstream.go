package journal

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/lease"
)

const (
	// streamName is the stream that holds every shard's records, a subject each.
	streamName = "ANNONA_JOURNAL"
	// streamSubjects are those of all shards.
	streamSubjects = "annona.journal.*"
	// initMark is the metadata key under which a stream keeps which --init made it.
	initMark = "annona_init"
	// ackTimeout is how long a record may take to be acknowledged; a synced one takes some milliseconds.
	ackTimeout = 2 * time.Second
	// callTimeout bounds any other call of JetStream.
	callTimeout = 5 * time.Second
	// stallTimeout is how long a replay may see no further record before it gives up.
	stallTimeout = 10 * time.Second
	// readAhead and readAheadBytes are what a replay asks for at once: enough to hide the round trip, bounded in memory.
	readAhead      = 4096
	readAheadBytes = 16 << 20
	// readerIdle is how long the server keeps a reader that went away without saying so.
	readerIdle = 30 * time.Second
)

// JetStream keeps the journal in one file-backed JetStream stream, one message a record. The server must sync always
// (`sync_interval: always`), or an acknowledged record may be lost with the machine.
type JetStream struct{ js jetstream.JetStream }

var _ Journal = (*JetStream)(nil)

// OpenJetStream opens the journal. Without init it must exist (else ErrMissing), with init it must not (else ErrExists): a
// journal that was lost must not come back unnoticed as a new one with full pools. Any other error may pass; try again.
// Replicas are those of a new journal, 0 the most up to three that the servers allow.
func OpenJetStream(ctx context.Context, conn *nats.Conn, replicas int, init bool) (*JetStream, error) {
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	j := &JetStream{js: js}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = j.stream(ctx)
	switch {
	case err == nil && init:
		return nil, ErrExists
	case errors.Is(err, ErrMissing) && init:
		return j, j.create(ctx, replicas)
	case err != nil:
		return nil, err
	}
	return j, nil
}

// create makes the stream. Making the same stream twice is no error to JetStream, so a mark of our own tells two callers apart.
func (j *JetStream) create(ctx context.Context, replicas int) error {
	mark := rand.Text()
	err := bus.Replicas(replicas, func(replicas int) error {
		_, err := j.js.CreateStream(ctx, jetstream.StreamConfig{
			Name:        streamName,
			Description: "Annona's journal: what the allocator leased, by shard",
			Subjects:    []string{streamSubjects},
			Storage:     jetstream.FileStorage,
			Replicas:    replicas,
			Retention:   jetstream.LimitsPolicy,
			// A full disk refuses new records rather than forget old ones.
			Discard: jetstream.DiscardNew,
			// No single record ever goes. Purging stays possible: what a snapshot covers is purged up to it.
			DenyDelete: true,
			Metadata:   map[string]string{initMark: mark},
		})
		return err //nolint:wrapcheck // wrapped below
	})
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return ErrExists
	}
	if err != nil {
		return fmt.Errorf("create the journal %s: %w", streamName, err)
	}
	return nil
}

func (j *JetStream) stream(ctx context.Context) (jetstream.Stream, error) {
	stream, err := j.js.Stream(ctx, streamName)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, ErrMissing
	}
	if err != nil {
		return nil, fmt.Errorf("open the journal %s: %w", streamName, err)
	}
	return stream, nil
}

// Append implements [Journal]. While NATS or the stream is out the outcome is unknown, even where nothing can have been sent.
func (j *JetStream) Append(ctx context.Context, shard int, last uint64, record []byte) (uint64, error) {
	if len(record) > MaxRecord {
		return 0, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(record), MaxRecord)
	}
	ctx, cancel := context.WithTimeout(ctx, ackTimeout)
	defer cancel()
	ack, err := j.js.PublishMsg(ctx, &nats.Msg{Subject: lease.JournalSubject(shard), Data: record},
		jetstream.WithExpectStream(streamName),
		jetstream.WithExpectLastSequencePerSubject(last),
		jetstream.WithRetryAttempts(0))
	switch {
	case err == nil:
		return ack.Sequence, nil
	case isConflict(err):
		return 0, fmt.Errorf("%w (shard %d after record %d)", ErrConflict, shard, last)
	default:
		return 0, fmt.Errorf("%w (shard %d after record %d): %w", ErrUnknown, shard, last, err)
	}
}

// isConflict reports whether err says that the expected last sequence is another one; a replicated stream has a code of its own.
func isConflict(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// Replay implements [Journal].
func (j *JetStream) Replay(ctx context.Context, shard int, apply func(number uint64, record []byte) error) (uint64, error) {
	stream, last, err := j.last(ctx, shard)
	if err != nil || last == 0 {
		return 0, err
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects:    []string{lease.JournalSubject(shard)},
		DeliverPolicy:     jetstream.DeliverAllPolicy,
		InactiveThreshold: readerIdle,
		// A reader that is lost ends the replay: the loop above tries again, with its own waits.
		MaxResetAttempts: 1,
	})
	if err != nil {
		return 0, fmt.Errorf("read the journal of shard %d: %w", shard, err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessagesWithBytesLimit(readAhead, readAheadBytes))
	if err != nil {
		return 0, fmt.Errorf("read the journal of shard %d: %w", shard, err)
	}
	defer messages.Stop()
	for {
		number, err := next(ctx, messages, apply)
		if err != nil {
			return 0, fmt.Errorf("read the journal of shard %d up to record %d: %w", shard, last, err)
		}
		if number >= last {
			return number, nil
		}
	}
}

// last returns the number of the newest record of shard, 0 if there is none, as the stream's leader knows it.
func (j *JetStream) last(ctx context.Context, shard int) (jetstream.Stream, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stream, err := j.stream(ctx)
	if err != nil {
		return nil, 0, err
	}
	message, err := stream.GetLastMsgForSubject(ctx, lease.JournalSubject(shard))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return stream, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("find the last record of shard %d: %w", shard, err)
	}
	return stream, message.Sequence, nil
}

// next applies one record and returns its number.
func next(ctx context.Context, messages jetstream.MessagesContext, apply func(uint64, []byte) error) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, stallTimeout)
	defer cancel()
	message, err := messages.Next(jetstream.NextContext(ctx))
	if err != nil {
		return 0, fmt.Errorf("next record: %w", err)
	}
	meta, err := message.Metadata()
	if err != nil {
		return 0, fmt.Errorf("number of a record: %w", err)
	}
	return meta.Sequence.Stream, apply(meta.Sequence.Stream, message.Data())
}
