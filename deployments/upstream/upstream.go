// Package upstream is the sample service behind a gateway: it answers what it was asked, so that a reader sees what the gateway
// forwarded. The demo and the end-to-end tests run it.
package upstream

import (
	"encoding/json"
	"net/http"
)

// Answer is what a request looked like when it arrived.
type Answer struct {
	Method  string      `json:"method"`
	Target  string      `json:"target"`  // the raw request target, as on the request line
	Headers http.Header `json:"headers"` // by name, in the order of the alphabet; Host is among them
}

// Handler answers every request with 200 and its Answer as JSON. The body is not read.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		headers := r.Header.Clone()
		if headers == nil {
			headers = http.Header{}
		}
		headers.Set("Host", r.Host)
		w.Header().Set("Content-Type", "application/json")
		out := json.NewEncoder(w)
		out.SetEscapeHTML(false) // & in a target is to be read as &
		// A reader that went away is the only error left, and nobody is there to be told.
		_ = out.Encode(Answer{Method: r.Method, Target: r.RequestURI, Headers: headers})
	})
}
