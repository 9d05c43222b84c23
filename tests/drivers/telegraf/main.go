// Telegraf's input "postgresql" or "pgbouncer", gathered twice; what it has gathered as JSON.
package main

import (
	"encoding/json"
	"os"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/config"
	"github.com/influxdata/telegraf/plugins/inputs/pgbouncer"
	"github.com/influxdata/telegraf/plugins/inputs/postgresql"
)

type accumulator struct {
	telegraf.Accumulator
	values map[string]interface{}
	errors []string
	rows   int
}

func (a *accumulator) AddFields(measurement string, fields map[string]interface{}, tags map[string]string, _ ...time.Time) {
	a.rows++
	for f, value := range fields {
		a.values[measurement+" "+tags["db"]+" "+tags["user"]+" "+f] = value
	}
}

func (a *accumulator) AddError(err error) {
	if err != nil {
		a.errors = append(a.errors, err.Error())
	}
}

type plugin interface {
	telegraf.ServiceInput
	telegraf.Initializer
}

func main() {
	address := config.NewSecret([]byte(os.Args[2]))
	var input plugin
	switch os.Args[1] {
	case "postgresql":
		one := &postgresql.Postgresql{}
		one.Config.Address = address
		input = one
	case "pgbouncer":
		one := &pgbouncer.PgBouncer{ShowCommands: []string{"stats", "pools", "lists", "databases"}}
		one.Config.Address, one.Config.IsPgBouncer = address, true
		input = one
	}
	acc := &accumulator{values: map[string]interface{}{}}
	if err := input.Init(); err != nil {
		panic(err)
	}
	if err := input.Start(acc); err != nil {
		panic(err)
	}
	for i := 0; i < 2; i++ {
		if err := input.Gather(acc); err != nil {
			panic(err)
		}
	}
	input.Stop()
	json.NewEncoder(os.Stdout).Encode(map[string]any{"values": acc.values, "errors": acc.errors, "rows": acc.rows})
}
