package identity

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

const (
	// lookEvery is how often a file is looked at. It is read when two looks see the same change, so that one that is being
	// written in place is not read half.
	lookEvery = time.Second
	// maxFile bounds what is read into memory: some hundred thousand API keys.
	maxFile = 64 << 20
)

// file is one that is read again when it changes. Its last good content is what use made of it.
type file struct {
	what string // in messages
	path string
	use  func([]byte) error // takes over good content, and returns what is wrong with bad
	log  *slog.Logger

	mu          sync.Mutex
	read, found os.FileInfo // as it was when last read, and at the last look; nil: not there
}

// load reads the file now.
func (f *file) load() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.loadLocked()
}

func (f *file) loadLocked() error {
	// Looked at first: what changes after that is seen at the next look.
	f.read, _ = os.Stat(f.path)
	if f.read != nil && f.read.Size() > maxFile {
		return fmt.Errorf("%s in %s: %d bytes; at most %d are read", f.what, f.path, f.read.Size(), maxFile)
	}
	source, err := os.ReadFile(f.path)
	if err != nil {
		return fmt.Errorf("%s: %w", f.what, err)
	}
	if err = f.use(source); err != nil {
		return fmt.Errorf("%s in %s: %w", f.what, f.path, err)
	}
	return nil
}

// watch reloads the file after changes, until ctx ends.
func (f *file) watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.look(ctx)
		}
	}
}

func (f *file) look(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.found
	f.found, _ = os.Stat(f.path)
	if !same(f.found, before) || same(f.found, f.read) {
		return
	}
	if err := f.loadLocked(); err != nil {
		f.log.ErrorContext(ctx, "a file cannot be used; what was read before stays", "error", err)
		return
	}
	f.log.InfoContext(ctx, "a file has changed and was read", "file", f.what)
}

func same(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}
