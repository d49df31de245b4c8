// Package cluster runs a whole Annona for tests: real processes of annona, redis-server and nats-server, joined by links that a
// test can slow down or cut. It ends only the processes that it started.
package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Proc is one process that can be killed and started again with the same command line.
type Proc struct {
	name string
	path string
	args []string
	log  string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{}
}

func newProc(dir, name, path string, args ...string) *Proc {
	return &Proc{name: name, path: path, args: args, log: filepath.Join(dir, name+".log")}
}

// Start runs the process; its output is appended to its log.
func (p *Proc) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("log of %s: %w", p.name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.path, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	p.cmd, p.done = cmd, done
	return nil
}

// Kill ends the process at once (SIGKILL) and waits for its end.
func (p *Proc) Kill() { p.end(syscall.SIGKILL) }

// Stop asks the process to drain (SIGTERM) and waits for its end, or kills it after 15 s.
func (p *Proc) Stop() { p.end(syscall.SIGTERM) }

func (p *Proc) end(signal syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(signal)
	select {
	case <-p.done:
	case <-time.After(15 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	p.cmd = nil
}

// Signal sends a signal to the running process.
func (p *Proc) Signal(signal syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return fmt.Errorf("%s does not run", p.name)
	}
	return p.cmd.Process.Signal(signal)
}

// Ended tells whether the process has ended, by itself or not.
func (p *Proc) Ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.done:
		return true
	default:
		return p.cmd == nil
	}
}

// Restart kills the process and starts it again.
func (p *Proc) Restart() error {
	p.Kill()
	return p.Start()
}

// Tail returns the end of the process's log, for a failure's message.
func (p *Proc) Tail() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	const most = 4000
	return string(data[max(0, len(data)-most):])
}

// Eventually fails t unless condition becomes true within limit.
func Eventually(t testing.TB, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	if !Becomes(limit, condition) {
		t.Fatalf("after %s: not %s", limit, what)
	}
}

// Becomes polls condition until it is true, at most for limit.
func Becomes(limit time.Duration, condition func() bool) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.After(limit)
	for {
		if condition() {
			return true
		}
		select {
		case <-tick.C:
		case <-end:
			return false
		}
	}
}
