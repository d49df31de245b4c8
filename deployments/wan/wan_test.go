package wan_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/annona-gateway/annona/deployments/wan"
)

// patience bounds what must happen soon; nothing here waits for it to pass.
const patience = 10 * time.Second

// echo is a target that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn) // a line that was cut ends it
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	return listener.Addr().String()
}

func listen(t *testing.T, target string, oneWay time.Duration) *wan.Link {
	t.Helper()
	link, err := wan.Listen("127.0.0.1:0", target, oneWay)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := link.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	})
	return link
}

func dial(t *testing.T, link *wan.Link) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", link.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// roundTrip sends text and returns how long its echo took.
func roundTrip(t *testing.T, conn net.Conn, text string) time.Duration {
	t.Helper()
	sent := time.Now()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
		t.Fatalf("echo %q, %v, want %q", got, err, text)
	}
	return time.Since(sent)
}

func TestEachDirectionTakesTheDelay(t *testing.T) {
	t.Parallel()
	link := listen(t, echo(t), 40*time.Millisecond)
	conn := dial(t, link)
	for range 3 {
		if took := roundTrip(t, conn, "ping"); took < 80*time.Millisecond {
			t.Errorf("a round trip took %v, want 2 × 40ms at least", took)
		}
	}
	link.SetDelay(60 * time.Millisecond)
	if took := roundTrip(t, conn, "ping"); took < 120*time.Millisecond {
		t.Errorf("after SetDelay a round trip took %v, want 2 × 60ms at least", took)
	}
}

func TestTheDelayIsNotPaidByEachByte(t *testing.T) {
	t.Parallel()
	// 8 MiB through a line that were to carry one chunk at a time would take 2,048 delays of 20 ms, over 40 s.
	link := listen(t, echo(t), 20*time.Millisecond)
	conn := dial(t, link)
	want := bytes.Repeat([]byte("0123456789abcdef"), 8<<20/16)
	var sending sync.WaitGroup
	sending.Go(func() {
		if _, err := conn.Write(want); err != nil {
			t.Error(err)
		}
	})
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil {
		t.Fatal(err)
	}
	sending.Wait()
	if !bytes.Equal(got, want) {
		t.Error("what came back is not what was sent")
	}
}

func TestAnEndThatStopsSendingIsStillAnswered(t *testing.T) {
	t.Parallel()
	link := listen(t, echo(t), 5*time.Millisecond)
	conn := dial(t, link)
	if _, err := io.WriteString(conn, "last words"); err != nil {
		t.Fatal(err)
	}
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		t.Fatalf("a %T cannot stop sending", conn)
	}
	if err := half.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != "last words" {
		t.Errorf("read %q, %v, want the last words and an orderly end", got, err)
	}
}

func TestCutEndsWhatIsThereAndRefusesWhatComes(t *testing.T) {
	t.Parallel()
	link := listen(t, echo(t), 0)
	old := dial(t, link)
	roundTrip(t, old, "ping")
	link.Cut()
	if _, err := old.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("read on a line that was cut = %v, want an end", err)
	}
	wantRefused(t, link)
	link.Restore()
	roundTrip(t, dial(t, link), "pong")
}

func TestCutLosesWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	got := make(chan []byte, 1)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	connected := make(chan struct{})
	go func() {
		conn, err := listener.Accept()
		close(connected)
		if err != nil {
			got <- nil
			return
		}
		all, _ := io.ReadAll(conn) // it ends by a reset
		got <- all
	}()
	link := listen(t, listener.Addr().String(), time.Minute)
	if _, err := io.WriteString(dial(t, link), "under way"); err != nil {
		t.Fatal(err)
	}
	<-connected
	link.Cut()
	select {
	case all := <-got:
		if len(all) > 0 {
			t.Errorf("%q arrived through a line that was cut", all)
		}
	case <-time.After(patience):
		t.Error("the target's end of a line that was cut is still there")
	}
}

func TestHoldCarriesNothingUntilRestoreAndLosesNothing(t *testing.T) {
	t.Parallel()
	link := listen(t, echo(t), 0)
	conn := dial(t, link)
	roundTrip(t, conn, "ping")
	link.Hold()
	late := dial(t, link)
	for _, c := range []net.Conn{conn, late} {
		if _, err := io.WriteString(c, "held"); err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 1)); n != 0 || !isTimeout(err) {
			t.Errorf("read on a line that is held = %d, %v, want silence", n, err)
		}
	}
	link.Hold() // twice is once: one Restore ends it
	link.Restore()
	for _, c := range []net.Conn{conn, late} {
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != "held" {
			t.Errorf("after Restore %q, %v, want what was sent meanwhile", got, err)
		}
	}
}

func TestATargetThatIsOutEndsTheLine(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, listen(t, listener.Addr().String(), 0))
}

// wantRefused expects that a new line ends before it carries anything.
func wantRefused(t *testing.T, link *wan.Link) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", link.Addr())
	if err != nil {
		return // the reset was faster than the dial
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("read on a line that should be refused = %d, %v, want an end", n, err)
	}
}

func TestCloseEndsALineThatIsHeldOrFull(t *testing.T) {
	t.Parallel()
	link := listen(t, echo(t), time.Hour)
	conn := dial(t, link)
	roundTripStarted := make(chan struct{})
	go func() {
		close(roundTripStarted)
		_, _ = conn.Write(make([]byte, 64<<20)) // more than a direction holds
	}()
	<-roundTripStarted
	link.Hold()
	done := make(chan error, 1)
	go func() { done <- link.Close() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Close = %v", err)
		}
	case <-time.After(patience):
		t.Fatal("Close waits for a line")
	}
}

func TestAnAddressThatIsTakenIsAClearError(t *testing.T) {
	t.Parallel()
	link := listen(t, echo(t), 0)
	if second, err := wan.Listen(link.Addr(), "127.0.0.1:1", 0); err == nil {
		t.Errorf("Listen on a taken address = %v", second.Addr())
	}
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network) && network.Timeout()
}
