package gateway

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// The codes of gRPC that a gateway answers with (gRPC's doc/statuscodes.md).
const (
	grpcUnknown           = 2
	grpcDeadlineExceeded  = 4
	grpcPermissionDenied  = 7
	grpcResourceExhausted = 8
	grpcNoSuchMethod      = 12
	grpcInternal          = 13
	grpcUnavailable       = 14
	grpcUnauthenticated   = 16
)

// codesOfGRPC are gRPC's words for the statuses of HTTP that a gateway answers with.
var codesOfGRPC = map[int]int{
	http.StatusBadRequest:            grpcInternal, // no gRPC client sends such a request
	http.StatusUnauthorized:          grpcUnauthenticated,
	http.StatusForbidden:             grpcPermissionDenied,
	http.StatusNotFound:              grpcNoSuchMethod,
	http.StatusRequestTimeout:        grpcDeadlineExceeded,
	http.StatusRequestEntityTooLarge: grpcResourceExhausted,
	http.StatusTooManyRequests:       grpcResourceExhausted,
	http.StatusInternalServerError:   grpcInternal,
	http.StatusBadGateway:            grpcUnavailable,
	http.StatusServiceUnavailable:    grpcUnavailable,
	http.StatusGatewayTimeout:        grpcUnavailable,
}

// wantsGRPC tells whether r's client reads a status of gRPC: gRPC proper needs HTTP/2, gRPC-Web does not.
func wantsGRPC(r *http.Request) bool {
	rest, ok := strings.CutPrefix(r.Header.Get("Content-Type"), "application/grpc")
	if !ok || r.Method != http.MethodPost {
		return false
	}
	web := strings.HasPrefix(rest, "-web")
	return web || (r.ProtoMajor > 1 && (rest == "" || rest[0] == '+' || rest[0] == ';'))
}

// failGRPC answers with p as gRPC does: "200, trailers only", the status among the header fields of an answer without body.
func (x *exchange) failGRPC(contentType string, p problem) {
	header := x.answer.Header()
	code, known := codesOfGRPC[p.Status]
	if !known {
		code = grpcUnknown
	}
	message := p.Detail
	if message == "" {
		message = p.Title
	}
	x.grpcStatus = strconv.Itoa(code)
	header.Set("Content-Type", contentType)
	header.Set("Grpc-Status", x.grpcStatus)
	header.Set("Grpc-Message", percentEncoded(message))
	if p.RetryAfter > 0 {
		header.Set("Grpc-Retry-Pushback-Ms", strconv.FormatInt(p.RetryAfter*1000, 10)) // a client's retry policy obeys it
	}
	x.answer.WriteHeader(http.StatusOK)
}

// percentEncoded is text as a Grpc-Message: printable ASCII but for the percent sign stands for itself.
func percentEncoded(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if c < ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}
