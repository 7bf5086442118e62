"""HTML pages: a form to try the model, and the API documentation. They fetch nothing from outside."""

from collections.abc import Iterator
from html import escape
from typing import Any

from vitrail.inference.predictor import Predictor
from vitrail.serve.config import MEBIBYTE, ServeConfig
from vitrail.tasks.task import Task

HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Vitrail</title><style>
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}
code,pre{font:14px/1.5 ui-monospace,monospace}pre{white-space:pre-wrap;padding:.6rem;border:1px solid #8886;border-radius:4px}
pre,#out{overflow-wrap:anywhere}table{border-collapse:collapse}td{padding:.15rem .8rem .15rem 0;vertical-align:top}
button,input{font:inherit;max-width:100%}#out img{display:block;max-width:100%;max-height:28rem;margin-top:1rem}
h2{margin:3rem 0 0}h2 code{font-size:1.3rem;font-weight:600}h3{font-size:1rem;margin:1rem 0 .2rem}
figure{position:relative;margin:.6rem 0}#out figure img{width:100%;margin:0;max-height:none;image-rendering:pixelated}
#out figure img+img{position:absolute;inset:0;height:100%}input[type=range]{vertical-align:middle}
.swatch{display:inline-block;width:1em;height:1em;border-radius:3px;vertical-align:-.15em;margin-right:.5em}
.fixed td:first-child,#out td+td{white-space:nowrap}#out td+td{text-align:right}#out p{margin:0}
</style>"""
SCRIPT = """<script>
const form=document.forms[0],out=document.querySelector("#out"),pre=document.querySelector("pre");
pre.textContent=pre.textContent.replaceAll("http://HOST",location.origin);
function add(tag,text){const element=document.createElement(tag);element.textContent=text;out.append(element);return element}
const percent=value=>(100*value).toFixed(2)+" %";
function cells(row){  // of a classifier the labels, of any other task its fields
  if(row.labels){  // several labels per image: those that reach their threshold, then the most probable others
    const others=row.top.filter(entry=>!row.labels.includes(entry.label));
    const chosen=row.labels.map((label,index)=>[label,percent(row.probabilities[index])]);
    return [...chosen.length?chosen:[["no label reaches its threshold",""]],
      ...others.map(entry=>[entry.label+" (below its threshold)",percent(entry.probability)])]}
  if(row.top)return row.top.map(entry=>[entry.label,percent(entry.probability)]);
  return fields(row).map(([name,value])=>[name,show(value)])}
function fields(row){  // numbers by name are a row each
  return Object.entries(row).filter(([name])=>name!=="file").flatMap(([name,value])=>
    value&&typeof value==="object"&&!Array.isArray(value)?Object.entries(value):[[name,value]])}
function show(value){
  return typeof value==="number"?String(Number(value.toPrecision(6))):typeof value==="string"?value:JSON.stringify(value)}
function showMask(row,file){  // the mask over its image, and a legend
  const figure=add("figure",""),bytes=Uint8Array.from(atob(row.png),character=>character.charCodeAt(0));
  const [height,width]=row.size;
  figure.style.width=`min(100%,${28*Math.min(1,width/height)}rem)`;figure.style.aspectRatio=width+"/"+height;
  const [image,mask]=[file,new Blob([bytes],{type:"image/png"})].map(blob=>{
    const element=document.createElement("img");element.src=URL.createObjectURL(blob);figure.append(element);return element});
  image.alt="";mask.alt="the class of each pixel";
  image.onerror=()=>image.style.visibility="hidden";  // of a kind that browsers do not show
  const label=add("label","mask "),slider=document.createElement("input");label.append(slider);
  Object.assign(slider,{type:"range",min:0,max:1,step:.05,value:.6,oninput:()=>mask.style.opacity=slider.value});slider.oninput();
  const table=add("table","");for(const entry of row.classes){
    const line=table.insertRow(),name=line.insertCell(),swatch=document.createElement("span");
    swatch.className="swatch";swatch.style.background=entry.colour;name.append(swatch,entry.label);
    line.insertCell().textContent=percent(entry.fraction)}}
async function send(body,headers){  // masks, unless the model predicts none
  const options={method:"POST",body,headers};
  if(form.dataset.kind!=="labels"){
    const response=await fetch("/segment?output=mask",options);if(response.status!==501)return response}
  return fetch("/predict",options)}
form.addEventListener("submit",async event=>{
  event.preventDefault();out.textContent="...";
  const body=new FormData();for(const file of form.files.files)body.append("files",file);
  const headers=form.token&&form.token.value?{Authorization:"Bearer "+form.token.value}:{};
  try{
    const response=await send(body,headers),result=await response.json();
    const rows=result.predictions||result.segmentations||result.images;out.textContent=rows?"":result.error;
    for(const [index,row] of (rows||[]).entries()){
      add("h3",row.file);if(row.error){add("p",row.error);continue}
      if(row.png){showMask(row,form.files.files[index]);continue}
      const table=add("table","");for(const [name,value] of cells(row)){const line=table.insertRow();
        line.insertCell().textContent=name;line.insertCell().textContent=value}}
    if(form.explain&&form.explain.checked&&form.files.files.length===1&&response.ok){
      const wanted=form.label.value?"?class="+encodeURIComponent(form.label.value):"";
      const file=form.files.files[0],map=await fetch("/explain"+wanted,{method:"POST",body:file,
        headers:{...headers,Accept:"image/png","Content-Type":file.type||"application/octet-stream"}});
      if(map.ok){const image=add("img","");image.src=URL.createObjectURL(await map.blob());image.alt="saliency map"
        }else add("p",(await map.json()).error)}
  }catch(error){out.textContent=error}
});
</script>"""

EXPLANATION = """<p><label><input type=checkbox name=explain> show a saliency map</label>
<label>of <input name=label placeholder="the most probable class" size=24></label>"""


def front_page(predictor: Predictor | None, source: str, config: ServeConfig) -> str:
    """Return the page with the model's name and a form to predict images."""
    description = "A Vision Transformer that predicts images."
    if predictor is not None:
        description = f"{source}: {describe_outputs(predictor.task)}, served with {predictor.backend}."
    token = "<p><label>Token <input type=password name=token></label>" if config.token else ""
    auth_option = '-H "Authorization: Bearer TOKEN" ' if config.token else ""
    pixels = f"{config.max_pixels / 1e6:,.3g} million" if config.max_pixels >= 1e6 else f"{config.max_pixels:,}"
    has_masks = predictor is not None and predictor.task.config.has_masks
    kind = "" if predictor is None else "masks" if has_masks else "labels"  # of the response
    explanation = "" if has_masks else EXPLANATION
    path = "segment" if has_masks else "predict"
    accept = 'http://HOST/segment -H "Accept: image/png" -o mask.png'
    mask_example = f"\n\ncurl {auth_option}-F files=@cat.jpg {accept}" if has_masks else ""
    limits = f"Up to {config.max_body / MEBIBYTE:,.3g} MiB per request and {pixels} pixels per image."
    return f"""{HEAD}<h1>Vitrail</h1><p>{escape(description)}
<form data-kind="{kind}">{token}<p><input type=file name=files accept="image/*,.npy" multiple required>
{explanation}<p><button>Predict</button></form>
<div id=out></div><p>{limits} From a program:
<pre>curl {auth_option}--data-binary @cat.jpg -H "Content-Type: image/jpeg" http://HOST/{path}

curl {auth_option}-F files=@cat.jpg -F files=@dog.jpg http://HOST/{path}{mask_example}</pre>
<p><a href="/docs">API documentation</a>, <a href="/openapi.json">OpenAPI schema</a>.{SCRIPT}"""


def describe_outputs(task: Task) -> str:
    """Return what a model predicts: ``10 classes``, or the name of another task."""
    if not task.has_classes:
        return task.description
    if task.config.several_labels:
        return f"any of {len(task.class_names):,} labels per image"
    return f"{len(task.class_names):,} {'class' if len(task.class_names) == 1 else 'classes'}"


def docs_page(schema: dict[str, Any]) -> str:
    """Return the OpenAPI schema as plain HTML."""
    links = "<a href='/'>Try an image</a>, or get the OpenAPI schema: <a href='/openapi.json'>openapi.json</a>."
    return f"{HEAD}<h1>Vitrail</h1><p>{links}" + "".join(_operation_sections(schema))


def _operation_sections(schema: dict[str, Any]) -> Iterator[str]:
    schemas = schema["components"]["schemas"]
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
            yield "".join(f"<p>{escape(part.replace('``', ''))}" for part in operation.get("description", "").split("\n\n"))
            parameters = [
                (f"?{item['name']}=", _type_name(item["schema"], schemas), item.get("description", ""))
                for item in operation.get("parameters", ())
            ]
            parameters += [("body", kind, "") for kind in operation.get("requestBody", {}).get("content", ())]
            yield _table("Request", parameters)
            yield _table(
                "Responses",
                [(status, _content_types(item), item["description"]) for status, item in operation["responses"].items()],
            )
    yield "<h2>Schemas</h2>"
    for name, shape in schemas.items():
        if "enum" in shape:  # listed with its parameter
            continue
        rows = [(field, _type_name(item), item.get("description", "")) for field, item in shape.get("properties", {}).items()]
        yield f"<h3 id='{escape(name)}'>{escape(name)}</h3><p>{escape(shape.get('description', ''))}{_table('', rows)}"


def _table(title: str, rows: list[tuple[str, str, str]]) -> str:
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (f"<h3>{title}</h3>" if title else "") + f"<table class=fixed>{cells}</table>" if rows else ""


def _content_types(answer: dict[str, Any]) -> str:
    return ", ".join(
        _type_name(item["schema"]) if kind.endswith("json") else kind for kind, item in answer.get("content", {}).items()
    )


def _type_name(schema: dict[str, Any], schemas: dict[str, Any] | None = None) -> str:
    """Return the type of a schema: integer, PredictResponse, list of ImageError ...; for an enum in ``schemas``, its values."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rsplit("/", 1)[-1]
        shape = (schemas or {}).get(name, {})
        return _type_name(shape) if "enum" in shape else name
    if "anyOf" in schema:
        return " or ".join(_type_name(item, schemas) for item in schema["anyOf"] if item.get("type") != "null")
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_type_name(schema['items'])}"
    return str(schema.get("type", "anything"))
