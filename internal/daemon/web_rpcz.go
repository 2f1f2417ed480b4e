package daemon

import (
	"html/template"
	"net/http"
	"time"

	"github.com/nyaladb/nyala/internal/rpc"
)

// The JSON form of /rpcz.
type (
	rpczMethod struct {
		Method   string         `json:"method"`
		Stream   bool           `json:"stream"`
		UnderWay []rpczUnderWay `json:"under_way"`
		Slow     []rpczSlow     `json:"slow"`
	}
	rpczUnderWay struct {
		From      string  `json:"from"`
		State     string  `json:"state"` // waiting (in the service's queue), working
		ForMs     float64 `json:"for_ms"`
		ExpiresMs float64 `json:"expires_ms,omitempty"` // from now; 0: never
	}
	rpczSlow struct {
		AtLeastMs float64   `json:"at_least_ms"`
		Count     uint64    `json:"count"`
		Last      rpczTaken `json:"last"`
	}
	rpczTaken struct {
		From     string    `json:"from"`
		Since    time.Time `json:"since"`
		TookMs   float64   `json:"took_ms"`
		WaitedMs float64   `json:"waited_ms"`
		Error    string    `json:"error,omitempty"`
	}
)

// AddCalls serves /rpcz: the calls under way and the last slow ones of each method. It must come before Run.
func (w *Web) AddCalls(calls func() []rpc.MethodCalls) {
	w.mux.HandleFunc("GET /rpcz", func(rw http.ResponseWriter, r *http.Request) {
		methods := rpczMethods(calls(), time.Now())
		if wantsJSON(r) {
			serveJSON(rw, http.StatusOK, map[string]any{"methods": methods})
			return
		}
		under, slow := 0, 0
		for _, m := range methods {
			under += len(m.UnderWay)
			slow += len(m.Slow)
		}
		servePage(rw, rpczTemplate, map[string]any{"Title": w.cfg.Title + ": calls", "Methods": methods, "UnderWay": under, "Slow": slow})
	})
	w.Link("/rpcz", "calls under way, and slow ones by method")
}

func rpczMethods(calls []rpc.MethodCalls, now time.Time) []rpczMethod {
	ms := func(d time.Duration) float64 {
		return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
	}
	out := make([]rpczMethod, 0, len(calls))
	for _, c := range calls {
		m := rpczMethod{Method: c.Method, Stream: c.Stream, UnderWay: []rpczUnderWay{}, Slow: []rpczSlow{}}
		for _, u := range c.UnderWay {
			row := rpczUnderWay{From: u.From, State: "working", ForMs: ms(now.Sub(u.Since))}
			if u.Waits {
				row.State = "waiting"
			}
			if !u.Expires.IsZero() {
				row.ExpiresMs = ms(u.Expires.Sub(now))
			}
			m.UnderWay = append(m.UnderWay, row)
		}
		for _, s := range c.Slow {
			m.Slow = append(m.Slow, rpczSlow{AtLeastMs: ms(s.AtLeast), Count: s.Count, Last: rpczTaken{
				From: s.Last.From, Since: s.Last.Since.UTC(), TookMs: ms(s.Last.Took), WaitedMs: ms(s.Last.Waited), Error: s.Last.Error,
			}})
		}
		out = append(out, m)
	}
	return out
}

// durationText is a duration for people: to 10 µs below a second, to 10 ms above.
func durationText(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	if d < time.Second {
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}

var rpczTemplate = template.Must(template.New("rpcz").Funcs(template.FuncMap{"duration": durationText}).Parse(pageHead + `
<h2>Under way</h2>
{{- if .UnderWay}}
<table>
<thead><tr><th>Method</th><th>From</th><th>State</th><th class="number">For</th><th class="number">Given up in</th></tr></thead>
<tbody>
{{- range $m := .Methods}}{{range .UnderWay}}
<tr><td>{{$m.Method}}{{if $m.Stream}} <span class="quiet">(stream)</span>{{end}}</td><td>{{.From}}</td><td>{{.State}}</td><td class="number">{{duration .ForMs}}</td><td class="number">{{if .ExpiresMs}}{{duration .ExpiresMs}}{{else}}<span class="quiet">never</span>{{end}}</td></tr>
{{- end}}{{end}}
</tbody>
</table>
{{- else}}
<p class="quiet">None.</p>
{{- end}}
<h2>Slow</h2>
<p class="quiet">How many calls of each method took so long since the start, and the last of them.</p>
{{- if .Slow}}
<table>
<thead><tr><th>Method</th><th class="number">At least, ms</th><th class="number">Calls</th><th>The last</th><th class="number">Took, ms</th><th class="number">Waited, ms</th><th>From</th><th>Error</th></tr></thead>
<tbody>
{{- range $m := .Methods}}{{range .Slow}}
<tr><td>{{$m.Method}}</td><td class="number">{{.AtLeastMs}}</td><td class="number">{{.Count}}</td><td class="name">{{.Last.Since.Format "2006-01-02 15:04:05"}}</td><td class="number">{{.Last.TookMs}}</td><td class="number">{{.Last.WaitedMs}}</td><td>{{.Last.From}}</td><td class="error">{{.Last.Error}}</td></tr>
{{- end}}{{end}}
</tbody>
</table>
{{- else}}
<p class="quiet">None.</p>
{{- end}}
` + pageFoot))
