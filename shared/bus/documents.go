package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The documents' names.
const (
	PolicyDocument  = "policies"
	RegionsDocument = "regions"
)

const (
	// documentsBucket is the JetStream KV bucket's name.
	documentsBucket = "annona-documents"
	// documentsHistory is how many revisions of a document are kept: the most that KV keeps.
	documentsHistory = 64
	// MaxDocument bounds a document; NATS takes messages of 1 MiB unless told otherwise.
	MaxDocument = 768 << 10
	// pollEvery is how late a change can be whose announcement was lost.
	pollEvery = 30 * time.Second
	// retryEvery is how soon a failed read is tried again.
	retryEvery = time.Second
	// callTimeout bounds one call of JetStream.
	callTimeout = 5 * time.Second
)

// ErrNoDocument: there is no such document yet. ErrStale: the document is not at the expected revision any more.
var (
	ErrNoDocument = errors.New("there is no such document yet")
	ErrStale      = errors.New("the document has another revision by now; read it again")
)

// Document is one revision of a document.
type Document struct {
	Revision uint64 // grows with every change
	Data     []byte
	Created  time.Time
}

// Documents keeps documents with their history in a JetStream KV bucket.
type Documents struct {
	js                jetstream.JetStream
	poll, retry, call time.Duration

	mu struct {
		sync.Mutex
		kv jetstream.KeyValue // nil until the bucket was seen
	}
}

// OpenDocuments opens the bucket; create makes it if it is missing, and fails where NATS does not answer. Without create the
// bucket need not be there yet: until it is, there is no document.
func OpenDocuments(ctx context.Context, conn *nats.Conn, replicas int, create bool) (*Documents, error) {
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("documents: %w", err)
	}
	d := &Documents{js: js, poll: pollEvery, retry: retryEvery, call: callTimeout}
	if !create {
		return d, nil
	}
	if _, err := d.bucket(ctx); !errors.Is(err, ErrNoDocument) {
		return d, err
	}
	return d, d.create(ctx, replicas)
}

// create makes the bucket. Two that create it at once make the same one.
func (d *Documents) create(ctx context.Context, replicas int) error {
	ctx, cancel := context.WithTimeout(ctx, d.call)
	defer cancel()
	err := Replicas(replicas, func(replicas int) error {
		_, err := d.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket:      documentsBucket,
			Description: "Annona's policies and regions, with history",
			History:     documentsHistory,
			Storage:     jetstream.FileStorage,
			Replicas:    replicas,
		})
		return err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return fmt.Errorf("create the documents' bucket %s: %w", documentsBucket, err)
	}
	return nil
}

// bucket returns the KV bucket, looking it up until it was seen once.
func (d *Documents) bucket(ctx context.Context) (jetstream.KeyValue, error) {
	d.mu.Lock()
	kv := d.mu.kv
	d.mu.Unlock()
	if kv != nil {
		return kv, nil
	}
	ctx, cancel := context.WithTimeout(ctx, d.call)
	defer cancel()
	kv, err := d.js.KeyValue(ctx, documentsBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, ErrNoDocument
	}
	if err != nil {
		return nil, fmt.Errorf("documents' bucket %s: %w", documentsBucket, err)
	}
	d.mu.Lock()
	d.mu.kv = kv
	d.mu.Unlock()
	return kv, nil
}

// Get returns the newest revision of a document, or ErrNoDocument.
func (d *Documents) Get(ctx context.Context, name string) (Document, error) {
	kv, err := d.bucket(ctx)
	if err != nil {
		return Document{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.call)
	defer cancel()
	entry, err := kv.Get(ctx, name)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return Document{}, ErrNoDocument
	}
	if err != nil {
		return Document{}, fmt.Errorf("read document %s: %w", name, err)
	}
	return documentOf(entry), nil
}

// Put stores a new revision if the newest is expected (0: none yet) and returns its number, else ErrStale. After any other
// error the revision may or may not have been stored; read the document to know.
func (d *Documents) Put(ctx context.Context, name string, expected uint64, data []byte) (uint64, error) {
	if len(data) > MaxDocument {
		return 0, fmt.Errorf("document %s has %d bytes; it may have %d", name, len(data), MaxDocument)
	}
	kv, err := d.bucket(ctx)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.call)
	defer cancel()
	revision, err := kv.Update(ctx, name, data, expected)
	if errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		return 0, ErrStale
	}
	if err != nil {
		return 0, fmt.Errorf("store document %s: %w", name, err)
	}
	return revision, nil
}

// History returns the kept revisions, newest first.
func (d *Documents) History(ctx context.Context, name string) ([]Document, error) {
	kv, err := d.bucket(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.call)
	defer cancel()
	entries, err := kv.History(ctx, name)
	if ctx.Err() != nil {
		// The list ends there too when time is up, with a part of it.
		err = ctx.Err()
	}
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, ErrNoDocument
	}
	if err != nil {
		return nil, fmt.Errorf("read the history of document %s: %w", name, err)
	}
	documents := make([]Document, 0, len(entries))
	for _, entry := range slices.Backward(entries) {
		documents = append(documents, documentOf(entry))
	}
	return documents, nil
}

func documentOf(entry jetstream.KeyValueEntry) Document {
	return Document{Revision: entry.Revision(), Data: entry.Value(), Created: entry.Created()}
}
