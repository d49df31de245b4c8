package admincmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/annona-gateway/annona/allocator/admin"
)

// The bounds of one call: an answer is at most a page of leases or a policy document.
const (
	callTimeout    = 15 * time.Second
	maxAnswerBytes = 16 << 20
)

// client calls the admin API for one command.
type client struct {
	base  string
	token string
	out   io.Writer
	raw   bool // print JSON as it came
	http  http.Client
}

func newClient(server, token string, out io.Writer, raw bool) (*client, error) {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" {
		return nil, usageError("--server must be like %s, without name, password or query", defaultServer)
	}
	return &client{
		base: strings.TrimRight(u.String(), "/") + admin.Prefix, token: token, out: out, raw: raw,
		http: http.Client{
			Timeout: callTimeout,
			// The token is meant for the server that was named and for no other.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// answer is what the API said.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// call sends one request; an answer of any status is no error.
func (c *client) call(ctx context.Context, method, path string, header http.Header, body []byte) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, fmt.Errorf("request: %w", err)
	}
	maps.Copy(r.Header, header)
	r.Header.Set("Authorization", "Bearer "+c.token)
	response, err := c.http.Do(r)
	if err != nil {
		return answer{}, fmt.Errorf("%w; is the allocator there? --server names it", err)
	}
	defer func() { _ = response.Body.Close() }() // all of it was read, or the answer is given up
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes+1))
	if err != nil {
		return answer{}, fmt.Errorf("the answer ended early: %w", err)
	}
	if len(data) > maxAnswerBytes {
		return answer{}, errors.New("the answer is larger than any of the admin API; check --server")
	}
	return answer{status: response.StatusCode, header: response.Header, body: data}, nil
}

// refusedError is an answer other than 200.
type refusedError struct {
	status  int
	problem admin.Problem
}

func (e *refusedError) Error() string {
	if e.problem.Detail == "" {
		return fmt.Sprintf("the server answered %d %s without saying why; check --server", e.status, http.StatusText(e.status))
	}
	return fmt.Sprintf("refused (%d): %s", e.status, clean(e.problem.Detail))
}

// ask calls and decodes the answer into into, or prints it where raw JSON is wanted; it reports whether it did.
func (c *client) ask(ctx context.Context, method, path string, body, into any) (printed bool, err error) {
	header := http.Header{"Accept": {"application/json"}}
	var sent []byte
	if body != nil {
		if sent, err = json.Marshal(body); err != nil {
			return false, fmt.Errorf("request: %w", err)
		}
		header.Set("Content-Type", "application/json")
	}
	got, err := c.call(ctx, method, path, header, sent)
	if err != nil {
		return false, err
	}
	return c.take(got, into)
}

// take decodes an answer, or prints it where raw JSON is wanted.
func (c *client) take(got answer, into any) (printed bool, err error) {
	refused := got.refusal()
	var other *refusedError
	if c.raw && (refused == nil || errors.As(refused, &other) && other.problem.Status != 0) {
		return true, errors.Join(c.print(got.body), refused)
	}
	if refused != nil {
		return false, refused
	}
	if err := json.Unmarshal(got.body, into); err != nil {
		return false, fmt.Errorf("the answer is not the admin API's; check --server: %w", err)
	}
	return false, nil
}

// refusal returns nil for an answer of 200.
func (a answer) refusal() error {
	if a.status == http.StatusOK {
		return nil
	}
	e := &refusedError{status: a.status}
	if err := json.Unmarshal(a.body, &e.problem); err != nil {
		e.problem = admin.Problem{}
	}
	return e
}

// print writes body with one newline at its end.
func (c *client) print(body []byte) error {
	return c.printf("%s\n", bytes.TrimRight(body, "\n"))
}

func (c *client) printf(format string, args ...any) error {
	if _, err := fmt.Fprintf(c.out, format, args...); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// clean makes text from a server fit for a terminal: a user's name may hold control characters.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
}
