// Draws the pictures of a page from its data by Chart.js: one function for all of them.
(() => {
  const charts = new Map();

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();

  /// From low to high of every point of a line.
  const errorBars = {
    id: 'errorBars',
    afterDatasetsDraw(chart) {
      chart.getSortedVisibleDatasetMetas().forEach((meta) => {
        const set = chart.data.datasets[meta.index];
        if (meta.type !== 'line') return;
        meta.data.forEach((point, i) => {
          const { low, high } = set.data[i].point;
          if (low === null || high === null || low >= high) return;
          const context = chart.ctx;
          context.save();
          context.strokeStyle = set.borderColor;
          context.globalAlpha = 0.5;
          context.lineWidth = 4;
          context.beginPath();
          context.moveTo(point.x, chart.scales.y.getPixelForValue(low));
          context.lineTo(point.x, chart.scales.y.getPixelForValue(high));
          context.stroke();
          context.restore();
        });
      });
    },
  };

  /// Rows are categories named by their numbers: two rows may have the same label.
  function barsOf(series, sideBySide) {
    const own = colour(series.colour);
    if (series.shape === 'mark')
      return {
        type: 'scatter', label: series.name, borderColor: own, backgroundColor: own, pointRadius: series.colour === 'ink' ? 4 : 6, pointHoverRadius: 8,
        pointStyle: series.colour === 'ideal' ? 'line' : 'rectRot', rotation: series.colour === 'ideal' ? 90 : 0,
        borderWidth: 3, pointBorderWidth: 3, order: -1,
        data: series.points.map((point) => ({ x: point.value, y: String(point.at), point })),
      };
    return {
      type: 'bar', label: series.name, pointStyle: 'rect', backgroundColor: own, borderColor: own, grouped: sideBySide, maxBarThickness: 22,
      minBarLength: 2, borderSkipped: false,
      data: series.points.map((point) => ({ x: [point.low, point.high], y: String(point.at), point })),
    };
  }

  function lineOf(series) {
    const own = colour(series.colour);
    return {
      type: 'line', label: series.name, borderColor: own, backgroundColor: own, borderWidth: 2, tension: 0,
      pointRadius: series.shape === 'dashed' ? 0 : series.points.length > 40 ? 1 : 4,
      pointBackgroundColor: series.points.map((point) => (point.computed ? colour('page') : own)),
      borderDash: series.shape === 'dashed' ? [6, 4] : [],
      segment: { borderDash: (at) => (series.points[at.p1DataIndex].computed ? [6, 4] : undefined) },
      data: series.points.map((point) => ({ x: point.at, y: point.value, point })),
    };
  }

  function scalesOf(chart) {
    const shared = { grid: { color: colour('grid') }, ticks: { color: colour('ink') } };
    const unit = { display: true, text: chart.unit, color: colour('soft') };
    if (chart.rows.length > 0)
      return {
        x: { ...shared, type: 'linear', title: unit, beginAtZero: true },
        y: { ...shared, type: 'category', labels: chart.rows.map((_, i) => String(i)), offset: true,
          ticks: { ...shared.ticks, autoSkip: false, callback: (i) => chart.rows[i] } },
      };
    const x = { ...shared, type: chart.log_x ? 'logarithmic' : 'linear' };
    if (chart.marks.length > 0) {
      const places = chart.marks.map(([at]) => at), labels = new Map(chart.marks);
      x.min = Math.min(...places);
      x.max = Math.max(...places);
      x.afterBuildTicks = (axis) => { axis.ticks = places.map((value) => ({ value })); };
      x.ticks = { ...shared.ticks, callback: (value) => labels.get(value) };
    }
    return { x, y: { ...shared, type: chart.log_y ? 'logarithmic' : 'linear', title: unit, beginAtZero: !chart.log_y } };
  }

  function draw(figure) {
    const chart = all.get(figure.dataset.chart);
    if (!chart) return;
    if (charts.has(chart.id)) charts.get(chart.id).destroy();
    const bars = chart.rows.length > 0;
    charts.set(chart.id, new Chart(figure.querySelector('canvas'), {
      type: bars ? 'bar' : 'line',
      data: { datasets: chart.series.map((series) => (bars ? barsOf(series, chart.side_by_side) : lineOf(series))) },
      options: {
        indexAxis: bars ? 'y' : 'x', animation: false, responsive: true, maintainAspectRatio: false,
        interaction: { mode: 'nearest', intersect: bars, axis: bars ? 'xy' : 'x' },
        scales: scalesOf(chart), clip: false,
        plugins: {
          legend: { labels: { color: colour('ink'), usePointStyle: true, boxHeight: 8 }, position: 'bottom' },
          tooltip: { callbacks: { title: () => '', label: (item) => item.raw.point.tip } },
        },
      },
      plugins: [errorBars],
    }));
  }

  const all = new Map(JSON.parse(document.getElementById('charts').textContent).map((chart) => [chart.id, chart]));
  const figures = [...document.querySelectorAll('figure[data-chart]')];
  const folded = (figure) => figure.closest('details:not([open])');
  const drawShown = () => figures.filter((figure) => !folded(figure)).forEach(draw);

  drawShown();
  document.querySelectorAll('details').forEach((one) =>
    one.addEventListener('toggle', () => { if (one.open) one.querySelectorAll('figure[data-chart]').forEach(draw); }));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawShown);

  // All sections are printed, in colours for paper.
  let opened = [];
  addEventListener('beforeprint', () => {
    opened = [...document.querySelectorAll('details:not([open])')];
    opened.forEach((one) => { one.open = true; });
    document.documentElement.classList.add('printed');
    drawShown();
  });
  addEventListener('afterprint', () => {
    opened.forEach((one) => { one.open = false; });
    document.documentElement.classList.remove('printed');
    drawShown();
  });
})();
