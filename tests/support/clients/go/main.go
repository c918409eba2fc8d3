// Runs the queries of standard input (a JSON list) by clickhouse-go, with the options that Grafana's
// ClickHouse plugin gives it. Prints for each query its columns and types, its rows, or its error.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
)

type answer struct {
	Types [][2]string `json:"types"`
	Rows  int         `json:"rows"`
	Error string      `json:"error"`
}

func ask(db *sql.DB, query string) (answer, error) {
	found := answer{Types: [][2]string{}}
	rows, err := db.QueryContext(context.Background(), query)
	if err != nil {
		return found, err
	}
	defer rows.Close()
	kinds, err := rows.ColumnTypes()
	if err != nil {
		return found, err
	}
	for _, kind := range kinds {
		found.Types = append(found.Types, [2]string{kind.Name(), kind.DatabaseTypeName()})
	}
	for rows.Next() {
		values := make([]any, len(kinds))
		for i := range values {
			values[i] = new(any)
		}
		if err := rows.Scan(values...); err != nil {
			return found, err
		}
		found.Rows++
	}
	return found, rows.Err()
}

func main() {
	host, port, _ := strings.Cut(os.Args[1], ":")
	number, _ := strconv.Atoi(port)
	db := clickhouse.OpenDB(&clickhouse.Options{
		Addr:        []string{host + ":" + strconv.Itoa(number)},
		Auth:        clickhouse.Auth{Database: "gangline", Username: "grafana", Password: os.Args[2]},
		Compression: &clickhouse.Compression{Method: clickhouse.CompressionGZIP},
		DialTimeout: 10 * time.Second,
		ReadTimeout: 60 * time.Second,
		Protocol:    clickhouse.HTTP,
		Settings:    clickhouse.Settings{"limit": 0, "max_execution_time": 60},
	})
	var queries []string
	if err := json.NewDecoder(os.Stdin).Decode(&queries); err != nil {
		panic(err)
	}
	answers := []answer{}
	for _, query := range queries {
		found, err := ask(db, query)
		if err != nil {
			found.Error = err.Error()
		}
		answers = append(answers, found)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		panic(err)
	}
}
