// Telegraf's input "postgresql", gathered twice; what it has gathered as JSON.
package main

import (
	"encoding/json"
	"os"
	"sort"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/config"
	"github.com/influxdata/telegraf/plugins/inputs/postgresql"
)

type accumulator struct {
	telegraf.Accumulator
	seen   map[string]bool
	errors []string
	rows   int
}

func (a *accumulator) AddFields(measurement string, fields map[string]interface{}, tags map[string]string, _ ...time.Time) {
	a.rows++
	for f := range fields {
		a.seen[measurement+" "+tags["db"]+" "+f] = true
	}
}

func (a *accumulator) AddError(err error) {
	if err != nil {
		a.errors = append(a.errors, err.Error())
	}
}

func main() {
	plugin := &postgresql.Postgresql{}
	plugin.Config.Address = config.NewSecret([]byte(os.Args[1]))
	acc := &accumulator{seen: map[string]bool{}}
	if err := plugin.Init(); err != nil {
		panic(err)
	}
	if err := plugin.Start(acc); err != nil {
		panic(err)
	}
	for i := 0; i < 2; i++ {
		if err := plugin.Gather(acc); err != nil {
			panic(err)
		}
	}
	plugin.Stop()
	names := []string{}
	for n := range acc.seen {
		names = append(names, n)
	}
	sort.Strings(names)
	json.NewEncoder(os.Stdout).Encode(map[string]any{"names": names, "errors": acc.errors, "rows": acc.rows})
}
