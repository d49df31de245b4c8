package bucket_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
)

// TestListenersSurviveRestart: a subscription lost with its server is made anew.
func TestListenersSurviveRestart(t *testing.T) {
	server := buckettest.StartRedis(t)
	store := openStore(t, bucket.Config{Addrs: []string{server.Addr}})
	heard := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := store.MirrorChanges(ctx, func() { heard <- struct{}{} }); err != nil {
			t.Error(err)
		}
	})
	revision := uint64(0)
	listens := func() error {
		revision++
		if err := store.SetMirror(t.Context(), bucket.Mirror{PolicyRevision: revision, Policy: []byte("p")}); err != nil {
			return err
		}
		select {
		case <-heard:
			return nil
		case <-time.After(20 * time.Millisecond):
			return errors.New("nobody heard")
		}
	}
	for range 2 {
		if err := buckettest.Poll(t.Context(), 10*time.Second, listens); err != nil {
			t.Fatal(err)
		}
		server.Restart()
	}
	if err := buckettest.Poll(t.Context(), 10*time.Second, listens); err != nil {
		t.Fatal(fmt.Errorf("after the restart: %w", err))
	}
	cancel()
	wg.Wait()
}
