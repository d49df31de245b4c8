package bus

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// SetPoll makes d poll every poll, and retry as often.
func (d *Documents) SetPoll(poll time.Duration) { d.poll, d.retry = poll, poll }

// ReconnectDelay is the wait before an attempt.
var ReconnectDelay = reconnectDelay

// ReconnectMost is the longest wait between attempts.
const ReconnectMost = reconnectMost

// Deafen makes d hear no announcement and returns how often it was polled since.
func (d *Documents) Deafen(t *testing.T) (polls func() int64) {
	t.Helper()
	kv, err := d.bucket(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	silent := &deaf{KeyValue: kv}
	d.mu.kv = silent
	return silent.polls.Load
}

// deaf is a bucket that announces nothing.
type deaf struct {
	jetstream.KeyValue
	polls atomic.Int64
}

// Get counts.
func (d *deaf) Get(ctx context.Context, key string) (jetstream.KeyValueEntry, error) {
	d.polls.Add(1)
	return d.KeyValue.Get(ctx, key)
}

// Watch fails.
func (*deaf) Watch(context.Context, string, ...jetstream.WatchOpt) (jetstream.KeyWatcher, error) {
	return nil, errors.New("not today")
}
