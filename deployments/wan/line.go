package wan

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// line is one connection through a link: two ends and two directions.
type line struct {
	link *Link
	end  context.CancelFunc
	near *net.TCPConn                // the caller's end
	far  atomic.Pointer[net.TCPConn] // the target's, once it is there
}

// chunk is some bytes under way; none stand for the end of the stream.
type chunk struct {
	due   time.Time
	bytes []byte
}

// drop ends the line at once; what is under way is lost.
func (n *line) drop() {
	n.end()
	reset(n.near)
	if far := n.far.Load(); far != nil {
		reset(far)
	}
}

// run carries both directions until both have ended or the line is dropped.
func (n *line) run(ctx context.Context) {
	defer n.link.leave(n)
	far := n.dial(ctx)
	if far == nil {
		n.drop()
		return
	}
	n.far.Store(far)
	if ctx.Err() != nil { // dropped while it dialed
		n.drop()
	}
	var directions sync.WaitGroup
	directions.Go(func() { n.carry(ctx, n.near, far) })
	directions.Go(func() { n.carry(ctx, far, n.near) })
	directions.Wait()
	n.end()
	// Closed, not reset: what the kernel still holds for either end is delivered. Dropped ones are closed already.
	_, _ = n.near.Close(), far.Close()
}

func (n *line) dial(ctx context.Context) *net.TCPConn {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", n.link.target)
	if err != nil {
		return nil
	}
	far, ok := conn.(*net.TCPConn)
	if !ok {
		_ = conn.Close()
	}
	return far
}

// carry moves one direction: its reader stamps what comes with the time it is due, carry itself delivers it then.
func (n *line) carry(ctx context.Context, from, to *net.TCPConn) {
	queue := make(chan chunk, maxChunks)
	var reader sync.WaitGroup
	reader.Go(func() { n.read(ctx, from, queue) })
	if !n.deliver(ctx, queue, to) {
		n.drop()
	}
	reader.Wait()
}

func (n *line) read(ctx context.Context, from *net.TCPConn, queue chan<- chunk) {
	buffer := make([]byte, chunkSize)
	for {
		size, err := from.Read(buffer)
		due := time.Now().Add(time.Duration(n.link.delay.Load()))
		if size > 0 && !put(ctx, queue, chunk{due, append([]byte(nil), buffer[:size]...)}) {
			return
		}
		if err != nil {
			put(ctx, queue, chunk{due: due})
			return
		}
	}
}

func put(ctx context.Context, queue chan<- chunk, c chunk) bool {
	select {
	case queue <- c:
		return true
	case <-ctx.Done():
		return false
	}
}

// deliver writes what is due until the stream ends; false where the line ended before.
func (n *line) deliver(ctx context.Context, queue <-chan chunk, to *net.TCPConn) bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var next chunk
		select {
		case next = <-queue:
		case <-ctx.Done():
			return false
		}
		timer.Reset(time.Until(next.due))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false
		}
		select {
		case <-n.link.gate():
		case <-ctx.Done():
			return false
		}
		if next.bytes == nil {
			return to.CloseWrite() == nil
		}
		if _, err := to.Write(next.bytes); err != nil {
			return false
		}
	}
}
