package bustest

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// clusterSize is how many servers a cluster has: enough for three replicas.
const clusterSize = 3

// clusterReady is how long one server may take to listen.
const clusterReady = 10 * time.Second

// StartCluster starts three servers that replicate, synced always, and returns their URLs; they end with the test. They choose
// their leader while the test begins: until then JetStream refuses.
func StartCluster(t testing.TB) []string {
	t.Helper()
	var urls []string
	routes := freeAddresses(t, clusterSize)
	for n, route := range routes {
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprint("n", n), Host: "127.0.0.1", Port: server.RANDOM_PORT,
			JetStream: true, StoreDir: t.TempDir(), SyncAlways: true, NoSigs: true, NoLog: true,
			Cluster: server.ClusterOpts{Name: "annona", Host: "127.0.0.1", Port: port(t, route)},
			Routes:  routes,
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
		})
		if !s.ReadyForConnections(clusterReady) {
			t.Fatal("a server of the cluster does not listen")
		}
		urls = append(urls, s.ClientURL())
	}
	return urls
}

// freeAddresses returns addresses that were free a moment ago: every server must know the others' before it starts.
func freeAddresses(t testing.TB, n int) (addresses []*url.URL) {
	t.Helper()
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		addresses = append(addresses, &url.URL{Scheme: "nats", Host: listener.Addr().String()})
	}
	return addresses
}

func port(t testing.TB, address *url.URL) int {
	t.Helper()
	number, err := strconv.Atoi(address.Port())
	if err != nil {
		t.Fatal(err)
	}
	return number
}
