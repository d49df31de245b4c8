package limittest

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/annona-gateway/annona/shared/limit"
)

var update = flag.Bool("update", false, "draw the picture of the attack anew")

const picture = "../../policy/edge.svg"

// attacked is what each algorithm admits of as many requests one second before a window's edge and one second after it, where
// the limit is 100 per minute.
func attacked(t *testing.T, name string, sent int) [2]int {
	t.Helper()
	const edge = 100 * minute
	l := map[string]limiter{
		"fixed_window":           &FixedWindow{N: 100, Window: minutes(t)},
		"sliding_window_log":     &Log{N: 100, Length: minute},
		"sliding_window_counter": &Counter{N: 100, Length: minute},
		"token_bucket":           &Bucket{Budget: limit.Budget{Capacity: 100, Rate: 100 * limit.MicroPerToken / 60}},
	}[name]
	return [2]int{bunch(l, edge-second, sent), bunch(l, edge+second, sent)}
}

// TestWindowEdgeAttack is the seed's golden case, and the picture in the page that helps to choose shows just these numbers:
// draw it with `go test ./shared/limit/limittest -run WindowEdge -update`.
func TestWindowEdgeAttack(t *testing.T) {
	wants := []struct {
		name string
		want map[int][2]int
	}{
		{"fixed_window", map[int][2]int{60: {60, 60}, 100: {100, 100}}},
		{"sliding_window_counter", map[int][2]int{60: {60, 41}, 100: {100, 1}}},
		{"token_bucket", map[int][2]int{60: {60, 43}, 100: {100, 3}}},
		{"sliding_window_log", map[int][2]int{60: {60, 40}, 100: {100, 0}}},
	}
	var drawn strings.Builder
	drawn.WriteString(svgHead)
	for column, sent := range []int{60, 100} {
		left := 190 + 260*column
		fmt.Fprintf(&drawn, `<text x="%d" y="24" class="h">%d + %d around the edge</text>`+"\n", left, sent, sent)
		for line, row := range wants {
			got := attacked(t, row.name, sent)
			if got != row.want[sent] {
				t.Errorf("%d + %d around the edge: %s admits %d, want %d", sent, sent, row.name, got, row.want[sent])
			}
			top := 40 + 34*line
			if column == 0 {
				fmt.Fprintf(&drawn, `<text x="180" y="%d" text-anchor="end">%s</text>`+"\n", top+15, row.name)
			}
			fmt.Fprintf(&drawn, `<rect x="%d" y="%d" width="%d" height="22" class="a"/><rect x="%d" y="%d" width="%d" height="22" class="b"/>`+
				`<text x="%d" y="%d">%d</text>`+"\n", left, top, got[0], left+got[0], top, got[1], left+got[0]+got[1]+6, top+15, got[0]+got[1])
		}
		fmt.Fprintf(&drawn, `<path d="M%d 34V180" class="l"/><text x="%d" y="196" text-anchor="middle">limit 100</text>`+"\n", left+100, left+100)
	}
	drawn.WriteString("</svg>\n")
	if *update {
		if err := os.WriteFile(picture, []byte(drawn.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if committed, err := os.ReadFile(picture); err != nil || string(committed) != drawn.String() {
		t.Errorf("%s is not what was measured (%v); draw it with -update", picture, err)
	}
}

const svgHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 210" font-family="sans-serif" font-size="13" role="img">
<title>What each algorithm admits, in two seconds around the edge of two windows, of a client that knows where the edge is</title>
<style>.h{font-weight:bold}.a{fill:#4a6fa5}.b{fill:#c8553d}.l{stroke:#222;stroke-dasharray:4 3}</style>
<rect width="700" height="210" fill="#fff"/>
`
