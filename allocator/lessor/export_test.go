package lessor

import (
	"sync"

	"github.com/nats-io/nats.go"
)

// The bounds that tests go up to.
const (
	QueueItems  = queueItems
	BackoffMost = backoffMost
	DenialsEach = denialsEach
	DenialKeys  = denialKeys
)

// Wire stands in for NATS: what it delivers goes to the shard that subscribed last.
type Wire struct {
	mu       sync.Mutex
	handlers []func(message)
}

// NewOnWire returns a lessor that takes its envelopes from the returned wire.
func NewOnWire(cfg Config) (*Lessor, *Wire) {
	l := New(cfg)
	w := &Wire{handlers: make([]func(message), cfg.Shards)}
	l.subscribe = func(shard int, handle func(message)) (func(), error) {
		w.set(shard, handle)
		return func() { w.set(shard, nil) }, nil
	}
	return l, w
}

func (w *Wire) set(shard int, handle func(message)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handlers[shard] = handle
}

// Deliver hands data to a shard and reports whether anyone took it; answers go to respond.
func (w *Wire) Deliver(shard int, subject string, header nats.Header, data []byte, respond func([]byte) error) bool {
	w.mu.Lock()
	handle := w.handlers[shard]
	w.mu.Unlock()
	if handle == nil {
		return false
	}
	handle(message{subject: subject, header: header, data: data, respond: respond})
	return true
}
